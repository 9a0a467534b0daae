# For bash in dom0, after driving.sh and switching.sh: a driver domain dd whose NIC is the way out of the hypervisor's switch, and the
# twin of its driver.

# twin_machine DRIVER GUEST: dd and a guest, 10.9.0.3, which reaches the outside through dd. $nic is dd's.
twin_machine() {
	driver=$1
	take_nic
	way_out dd
	check tandemd-starts daemon_starts || return 1
	remember_frames
	config $2 "$(plug 3)"
	# Of two CPUs one does what the twin asks for while the other waits for the twin. Nobody but twins has those that come beside them.
	# For these there are tests of their own with several queues, which they have for several CPUs.
	case $driver in vmxnet3 | virtio_net) local cpus=${cpus:-1} ;; *) local cpus=2 ;; esac
	driving dd "pci=['$nic,permissive=1']" "$(plug 2)" "vcpus=$cpus" 'maxvcpus=4'
	check a-driver-domain-drives-the-nic drives || { cat $daemon_log; return 1; }
	check a-guest-starts boot $2 || return 1
	check address plugged_address $2 3
	check the-outside-answers outside_answers $2
}
# twin_machine_ends GUEST: both go, and nothing stays.
twin_machine_ends() {
	check destroy destroyed dd $1
	# But page tables of the place where twins were, for the next one there.
	remember_less 128
	check nothing-stays nothing_stays
	check frames-agree-at-the-end audit
	check assignable-remove xl pci-assignable-remove $nic
}
destroyed() {
	local d
	for d in $*; do xl destroy $d && gone $d || return 1; done
}

drives() {
	local out
	boot dd || return 1
	out=$(in_guest dd 150 "modprobe bridge; job_bridge $driver")
	echo "$out" | grep -q 'bridge ok' || { echo "$out"; return 1; }
	in_guest dd 40 'modprobe xen-netfront; wait_for 10 test -e /sys/class/net/eth1 && ip link set eth1 master xenbr0 up' || return 1
	wait_for 20 grep 'the way out' $daemon_log
}

# twin_begins: the daemon is started, for twins of $mode
twin_begins() { in_guest dd 60 '[ -e /dev/tandem ] || job_twin_module; job_twind --interface eth0 --mode '${mode:-twin-mirror}; }

# twind_says WORDS [SECONDS]: soon that is the last that the daemon has said
twind_says() {
	local seconds=${2:-120}
	in_guest dd $((seconds * 2)) "wait_for $seconds sh -c 'tail -n 1 /tmp/twind | grep -q \"$1\" || ! kill -0 \$(cat /tmp/twind.pid)'; tail -n 1 /tmp/twind | grep '$1'" && return
	in_guest dd 10 'cat /tmp/twind; dmesg | tail -n 4'
	return 1
}

# numbers: packets of the way out, both ways, functions that the twin has called the driver domain for, and how often that woke, so far. What
# interrupted it until then is in /tmp/interrupts.
numbers() {
	local id=$(xl domid dd)
	in_guest dd 10 'cat /proc/interrupts' > /tmp/interrupts
	xl debug-keys r
	{ twinctl stats net; xl dmesg; } | awk "
		/^net outside / { packets += \$4 }
		/^net twin: .* upcalls/ { upcalls = \$3 }
		/'r' pressed/ { wakes = 0 }
		/ d${id}v[0-9]+: [0-9]+ wakes/ { sub(/.*: /, \"\"); wakes += \$1 }
		END { print packets + 0, upcalls + 0, wakes + 0 }"
}
# sleeps EACH PACKETS UPCALLS WAKES: since the numbers were these, packets went by the twin, and the driver domain had nothing to do with
# them, but for a call of its functions for each so many of them
sleeps() {
	mv /tmp/interrupts /tmp/interrupts.before
	local now=($(numbers))
	local packets=$((now[0] - $2)) upcalls=$((now[1] - $3)) wakes=$((now[2] - $4))
	echo "$packets packets, $upcalls calls of the driver domain's functions; it woke $wakes times" | tee /tmp/sleeps
	[ $packets -gt 1000 ] && [ $((upcalls * $1)) -lt $packets ] && [ $((wakes * 10)) -lt $packets ]
}
# sleeps_through EACH PACKETS UPCALLS WAKES COMMAND...: the same; if not, what interrupted it is told, and it is looked once more while this command
# sends packets. It may have had something of its own to do, but does not always.
sleeps_through() {
	! sleeps $1 $2 $3 $4 || return 0
	{ cat /tmp/sleeps; interrupted; } | quoted | while read -r line; do say "told $line"; done > /dev/console
	local each=$1 so_far=$(numbers)
	shift 4
	"$@" && sleeps $each $so_far
}
# interrupted: what interrupted dd between two calls of `numbers`, more than a few times
interrupted() { awk 'NR == FNR { was[$1] = $2; next } $2 - was[$1] > 20 { print $2 - was[$1] ":", $0 }' /tmp/interrupts.before /tmp/interrupts | tr -s ' '; }

# twin_dies: its daemon is killed, and Linux is the way out again
twin_dies() { in_guest dd 20 'kill -9 $(cat /tmp/twind.pid); wait_for 10 test -e /sys/class/net/xenbr0/brif/eth0'; }

# no_warnings [BUT]: dd answers, and its kernel has none, nor has tandem.ko, but for lines that match. What the console says meanwhile is no
# answer.
no_warnings() {
	local words='warn|bug:|oops:|cannot be|do not come|timed out|unit hang'
	in_guest dd 10 "dmesg | grep -iE '$words'; true" > /tmp/warnings || { cat /tmp/warnings; return 1; }
	! grep -vE "${1:-^\$}" /tmp/warnings | grep -iE "$words"
}

# tell [GUEST]: for who reads the log, where packets may be: twice, so that it is seen what moves. Of the guest: its interface and its
# stream. Of the switch: interfaces, cards. Of the card: its driver, its interrupt, the daemon, the kernel. Fails.
tell() {
	local n
	for n in 1 2; do
		{
			[ -z "$1" ] || in_guest $1 10 'grep eth0 /proc/net/dev; cat /tmp/stream; grep -E "^Tcp:" /proc/net/snmp; netstat -tn | tail -n 2; arp -n; grep eth0 /proc/interrupts'
			in_guest dd 20 'grep -E "eth0|eth1|tandem" /proc/interrupts; ethtool -S eth0 | grep -vE ": 0$"; for e in eth0 eth1; do grep $e /proc/net/dev; done; cat /proc/net/softnet_stat; cat /proc/uptime; tail -n 3 /tmp/twind; dmesg | tail -n 4'
			tandemd --list
			xl list
			tail -n 3 $daemon_log
		} > /tmp/told 2>&1
		quoted < /tmp/told | while read -r line; do say "told $line"; done
		xl debug-keys qr
	done
	false
}
