# For bash in dom0, after driving.sh, switching.sh and supervising.sh: a driver domain that dies again and again while guests are busy. Who
# reads this has said:
#
#   driver   of the device
#   keeps_link  not empty if the link is kept when the domain is replaced
#   way      fresh, standby if another one waits, snapshot if it is rolled back, or turns if another one waits and each is rolled back
#   mode     vm, or twin-mirror if the way out is the driver's twin
#   guests   their names; theirs are the addresses from 10.9.0.3 on
#   story    what reports are of
#   causes   of death, if a damaged driver is to be found out that sends what it was not told
#   silent_ms  the driver domain fails when nothing has come from outside for so long
#   rest_ms  so long each of a guest's streams rests after 64 KiB
kind=net
case $driver in nvme | ahci) kind=disk ;; esac
# A recovery, or what guests do after it, takes no longer.
patience_s=300

# The log of a console keeps the name that its domain was created with: one that is noted boots as one that waits does. $recovered is what tandemd has said
# of the last recovery.
recovered=
log_of() {
	local name=$1
	[[ $name != dd || $recovered != *'handed over'* && $way != snapshot && $way != turns ]] || name=dd-standby
	echo $logs/guest-$name.log
}

# meets NAME: the guest boots. It stays who it is, so nobody is asked each time where its console is, and what it says is read on from there.
declare -A ttys hears
meets() {
	must "no $1" boot $1
	ttys[$1]=$(tty_of $1)
	exec {hears[$1]}< $(log_of $1)
}

# ends_of_disks: what both ends of each disk say in xenstore
ends_of_disks() { xenstore-ls -f | grep -E '/vbd/.*/(state|serves|online|physical-device|hotplug-[a-z]*|event-channel|backend-id) '; }
quit() {
	say "$story FAIL $1"
	{ cat /tmp/quit; tail -n 12 $daemon_log; ends_of_disks; tail -n 20 $(log_of dd); ps | grep -E "[x]l (create|destroy|dev)"; xl list; } 2> /dev/null | quoted | while read -r line; do say "told $line"; done
	tells ${kind}_told
	xl debug-keys qd
	exit
}
# tells COMMAND...: what it says is for whoever looks into it
tells() { "$@" 2>&1 | quoted | while read -r line; do say "told $line"; done; }
# What is known of a driver domain that should have failed.
of_who_lives() {
	tandemd --list
	twinctl status $kind
	tail -n 4 $daemon_log
	tail -n 15 $(log_of dd)
}
# What both ends of a connection, and who is between them, know of it.
net_told() {
	local guest
	tandemd --list
	for guest in $guests; do in_guest $guest 60 'cat /proc/net/tcp /proc/net/dev; grep -E "^Tcp" /proc/net/snmp; tail -q -n 1 /tmp/stream.*; tail -n 3 /tmp/load'; done
	in_guest dd 60 'cat /proc/net/dev; grep . /sys/class/net/*/brport/state; dmesg | tail -n 20'
}
disk_told() { tandemd --list; }
# must WORDS COMMAND...
must() {
	local words=$1
	shift
	"$@" > /tmp/quit 2>&1 || quit "$words"
}

now_s() { local now rest; read -r now rest < /proc/uptime; echo ${now%.*}; }
# within SECONDS COMMAND...: as wait_for, of commands that take their time themselves
within() {
	local until=$(($(now_s) + $1))
	shift
	until "$@"; do
		[ $(now_s) -lt $until ] || return 1
		usleep 200000
	done
}

supervise() {
	for line in 'crashes = 1000000' 'within-s = 1' 'back-off-ms = 100' "$@"; do echo "$line" >> /etc/tandem/tandemd.toml; done
}
# waits COUNT: another one waits, for the so-many-th time
waits() {
	case $way in
	standby) must 'no other one waits' daemon_said $1 'waits to take its place' $patience_s ;;
	turns) must 'no other one waits' within $patience_s another_waits ;;
	esac
}
another_waits() { twinctl status $kind | grep '; another one waits'; }

# What a driver domain of the network is, and what guests do meanwhile.
net_machine() {
	local job=standby:$driver keys=() lines=() last=3 guest
	[ $way = fresh ] || keys=('standby = 1' 'reset = "driver"')
	[ $way != snapshot ] || keys=('snapshot = true' 'reset = "driver"')
	[ $way != turns ] || keys+=('snapshot = true')
	[ -z "$keeps_link" ] || keys+=('keep-link = true')
	# Nobody but twins has the CPUs that come beside the first.
	if [ $mode != vm ]; then
		keys+=('twin = true') lines=('vcpus=1' 'maxvcpus=4')
		# Who waits makes the twin while it waits.
		if [ $way = fresh ]; then job=$job+twin_kept; else job=twin_ahead:$driver+$job; fi
	fi
	[[ " $causes " != *' ring '* ]] || job=rings_known+$job
	supervised_machine $job "extra='$kernel_args oops=panic iommu=soft swiotlb=4096 $quick_args tandem.do=$job+drive'" "${lines[@]}" || quit 'no machine'
	supervised
	supervise "${keys[@]}" ${silent_ms:+"silent-ms = $silent_ms"}
	# A driver that is damaged may send what nobody has told it, with the right sums of its card's, and give what has changed since its card found the sums right.
	[[ " $causes " != *' text '* ]] || sed -i 's/^driver-domain = "dd"/&\noffload = false/' /etc/tandem/tandemd.toml
	must 'tandemd does not start' daemon_starts
	for guest in $guests; do
		config $guest "$(plug $last)"
		meets $guest
		must 'the guest has no interface' plugged_address $guest $last
		last=$((last + 1))
	done
	must 'no way out' daemon_said 1 'it is the way out'
	for guest in $guests; do must 'the outside does not answer' outside_answers $guest 60; done
	[ $mode = vm ] || must 'no twin' wait_for 120 by_twin
}
by_twin() { tandemd --list | grep 'way out: dd by its card'; }
# net_loads GUEST STREAM...: it asks by datagrams, pings, and has these streams (put, get). Its Linux asks for a minute where its neighbour is before it gives
# him up, instead of for three seconds: after that TCP may wait as long again as it had to.
net_loads() {
	local guest=$1 each n=0
	shift
	in_guest $guest 20 'echo 60 > /proc/sys/net/ipv4/neigh/eth0/ucast_solicit; : > /tmp/ended; netprobe 10.9.0.1 20 > /tmp/load 2>&1 & ping 10.9.0.1 > /tmp/pings 2>&1 &'
	for each in "$@"; do
		n=$((n + 1))
		in_guest $guest 20 "(while [ ! -e /tmp/stop ]; do { echo tcp at 0; tcptest $each 10.9.0.1 65536 $rest_ms; } > /tmp/stream.$n 2>&1; grep -v '^tcp at' /tmp/stream.$n >> /tmp/ended; done) > /dev/null 2>&1 &"
	done
}
# net_ends [CAUSE...]: a damaged driver may have sent the other end what nobody has asked it to. That counts such frames, and nettest fails for them.
net_ends() {
	local guest is_damaged=
	case " $* " in *' wild '* | *' text '* | *' ring '*) is_damaged=yes ;; esac
	for guest in $guests; do
		in_guest $guest 20 'touch /tmp/stop; killall tcptest netprobe ping'
		[ $is_damaged ] || check packets-of-$guest-go-on said 'net ok' $guest 120 "nettest eth0 10.9.0.1 2 64"
		check streams-of-$guest-go-on said 'tcp ok' $guest 120 "tcptest get 10.9.0.1 2"
	done
	[ $mode = vm ] || [ $way = fresh ] || check the-twin-was-made-while-it-waited in_guest dd 20 'grep "before its interface is there: [0-9]" /tmp/twind && ! grep "of no use" /tmp/twind'
	# Page tables of the place where the twin was, for the next one there.
	[ $mode = vm ] || remember_less 128
}

# node_of GUEST: which disk of the driver domain's it has
node_of() { if [ $driver = nvme ]; then echo /dev/nvme0n1; else echo /dev/sda; fi; }
disk_machine() {
	local class=0x0108 job=pci+backend:$driver keys=() slots=1 guest count=0
	case $way in
	standby) job=standby_disk:$driver keys=('standby = 1') slots=2 ;;
	snapshot) job=standby_disk:$driver keys=('snapshot = true') ;;
	turns) job=standby_disk:$driver keys=('standby = 1' 'snapshot = true') slots=2 ;;
	esac
	[ $driver = nvme ] || class=0x0106
	modprobe xen-pciback
	nic=$(devices class $class | head -n 1)
	must 'the device cannot leave dom0' xl pci-assignable-add $nic
	driving dd "pci=['$nic,permissive=1']" "extra='$kernel_args oops=panic iommu=soft swiotlb=4096 $quick_args tandem.do=$job+drive'"
	mkdir -p $logs /etc/tandem
	: > $(log_of dd)
	printf '[service.disk]\nkind = "disk"\ndriver-domain = "dd"\n' > /etc/tandem/tandemd.toml
	must 'tandemd does not start' daemon_starts
	remember_frames
	daemon_ends
	printf '[service.disk.supervise]\nconfig = "/tmp/dd.cfg"\n' >> /etc/tandem/tandemd.toml
	# No medium is slow here, and a request that a damaged kernel has lost is to be missed before patience is at its end.
	supervise 'overdue-ms = 60000' "${keys[@]}"
	must 'tandemd does not start again' daemon_starts
	must 'nobody has the disks' daemon_said 1 'it has the disks' 200
	for guest in $guests; do
		count=$((count + 1))
		config $guest "disk=['format=raw,vdev=xvda,access=rw,backend=disk,script=disk-plug,target=$(node_of $guest)']"
		meets $guest
		must 'the guest has no disk' in_guest $guest 90 'modprobe xen-blkfront; wait_for 80 test -b /dev/xvda'
	done
	# The service's domain keeps the pages between guest and driver domain: of each slot two sets of 161, and tables for them.
	remember_less $(((1288 * slots + 16) * count))
}

# dies CAUSE SEED. What tells that `twind` and `killed` were of any effect is the status. By `killed` it panics, and tandemd is killed within three seconds, while it is at that or just after; another one goes on.
dies() {
	local text=$driver ms=$(($2 % 3000)) pause each
	[ $driver != ahci ] || text=libahci
	case $1 in
	planned) twinctl restart $kind ;;
	panic) tell_dd 'echo c > /proc/sysrq-trigger' ;;
	destroyed) xl destroy dd ;;
	killed)
		tell_dd 'echo c > /proc/sysrq-trigger' || return
		printf -v pause '%d.%03d' $((ms / 1000)) $((ms % 1000))
		nap $pause
		daemon_ends || return
		# Without what is read here. If it does not start, nobody comes back.
		(for each in $daemon_hears ${hears[@]}; do exec {each}<&-; done; daemon_starts)
		return 0
		;;
	wedged) tell_dd job_wedge ;;
	wild | dma | ring) tell_dd "job_harm $1 $2" ;;
	text) tell_dd "job_harm text $2 $text" ;;
	twind) twind_ends ;;
	esac
}
# twind_ends: it was killed, and its twin is not the way out any more
twind_ends() {
	local ended
	ended=$(in_guest dd 20 'pid=$(cat /tmp/twind.pid); kill -9 $pid && echo killed $pid' | sed -n 's/^killed \([0-9][0-9]*\).*/\1/p')
	[ -n "$ended" ] || { echo 'no twind was killed'; return 1; }
	wait_for 30 eval '! by_twin' && return
	# Another one may have come before that was seen.
	in_guest dd 20 "grep '^twind: attached' /tmp/twind && ! grep -x $ended /tmp/twind.pid"
}
# hear FILE-DESCRIPTOR LINES: appends to the variable LINES what has come since; of the last line that may be a part. After many deaths nobody reads all
# of a file again. Not in a subshell, which would have read it for its parent, too.
hear() {
	local -n lines=$2
	local line
	while IFS= read -r -u $1 line; do lines+=$line$'\n'; done
	lines+=$line
}
# count_recoveries: sets $recoveries and $recovered
recoveries=0 daemon_hears= daemon_line=
count_recoveries() {
	local line
	[ -n "$daemon_hears" ] || exec {daemon_hears}< $daemon_log
	hear $daemon_hears daemon_line
	while [[ $daemon_line == *$'\n'* ]]; do
		line=${daemon_line%%$'\n'*} daemon_line=${daemon_line#*$'\n'}
		[[ $line != *'recovered, '* ]] || recoveries=$((recoveries + 1)) recovered=${line#*recovered, }
	done
}
# comes_back CAUSE COUNT [SECONDS]: it has recovered more than so often. A guest would wait for each process that is started here: bash looks and waits by itself.
comes_back() {
	local tries
	[ $1 != twind ] || { within $patience_s by_twin; return; }
	for ((tries = 5 * ${3:-$patience_s}; tries > 0; tries--)); do
		count_recoveries
		[ $recoveries -le $2 ] || return 0
		nap 0.2
	done
	return 1
}

# states WHAT COMMAND...: each guest's state (guest.sh) is in ${state[WHAT.GUEST]}, as the command says it; all are asked at once. No process is started for
# that, as with in_guest: a dozen took longer than the guests' answers.
declare -A state
states() {
	local what=$1 number rest guest tries waits_for=$guests left
	local -A said
	shift
	read -r number rest < /proc/uptime
	for guest in $guests; do
		hear ${hears[$guest]} rest
		echo "$number $*" > ${ttys[$guest]}
	done
	for ((tries = 10 * patience_s; tries > 0 && ${#waits_for} > 0; tries--)); do
		nap 0.1
		left=
		for guest in $waits_for; do
			rest=${said[$guest]}
			hear ${hears[$guest]} rest
			said[$guest]=$rest
			[[ $rest =~ "TANDEM: did $number "[0-9]+[.] ]] || left+=" $guest"
		done
		waits_for=$left
	done
	for guest in $guests; do
		if [[ ${said[$guest]} =~ (^|$'\n')"state "([0-9 ]+).*"TANDEM: did $number 0." ]]; then
			state[$what.$guest]=${BASH_REMATCH[2]}
		else
			echo "$guest: ${said[$guest]}" | tail -n 4
			waits_for+=" $guest"
		fi
	done
	[ -z "$waits_for" ]
}
# goes_on: all that guests do; what they have seen by then is in ${state[now.GUEST]}
goes_on() { states now "goes_on $kind $((patience_s - 60))"; }
# total WHAT FIELD: of all guests
total() {
	local guest fields sum=0
	for guest in $guests; do
		fields=(${state[$1.$guest]})
		sum=$((sum + ${fields[$2 - 1]}))
	done
	echo $sum
}

# faults_in LOG: how much has been damaged (harm.c), as far as that could still be said
faults_in() { sed -n 's/.*harm: damaged \([0-9]*\).*/\1/p' $1 | tail -n 1; }
# died CAUSE SEED: once, and all goes on. What tandemd says is in $line, when it was back in $back, and of so much damage in $faults.
died() {
	local came log=$(log_of dd)
	count_recoveries
	came=$recoveries
	: > $log
	dies $1 $2 > /tmp/quit 2>&1 || case $1 in twind | killed) quit "$1: it is not known that it has ended" ;; esac
	# Whoever does the damage may be damaged first, and do no more.
	case $1 in
	wild | text | dma | ring)
		comes_back $1 $came 60 || {
			say "outlived $1"
			tells of_who_lives
			tell_dd 'echo c > /proc/sysrq-trigger'
			# It may hear nothing any more, while its driver's twin goes on.
			comes_back $1 $came 20 || { say "outlived a panic"; xl destroy dd; }
		}
		;;
	esac
	must "after $1: it does not come back" comes_back $1 $came
	back=$(now_s)
	faults=
	case $1 in wild | text | dma | ring) faults=$(faults_in $log) ;; esac
	faults=${faults:-0}
	must "after $1: not all goes on" goes_on
	line=$recovered
	[ $1 != twind ] || line=
	# One that came in vain has told why, and so has tandemd.
	[[ $line != *again* ]] || tells eval 'grep -aiE "pci|$driver|TANDEM" $logs/guest-dd-standby.log | tail -n 40; tail -n 40 $daemon_log'
}

# daemon_files: so many tandemd has open
daemon_files() { ls /proc/$(cat /tmp/tandemd.pid)/fd | wc -l; }
# dying_ends: guests and driver domain go, and nothing stays. What a damaged kernel tells its device to do is for the IOMMU to stop.
dying_ends() {
	local guest
	case " $* " in *' wild '* | *' text '* | *' dma '* | *' ring '*) ;; *) check no-access-was-stopped no_dma_stopped ;; esac
	check it-is-parked eval "twinctl park $kind && gone dd 60 && gone dd-standby 60"
	for guest in $guests; do check destroy-$guest eval "xl destroy $guest && gone $guest"; done
	supervised_machine_ends
}
