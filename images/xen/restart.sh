# restart.sh DRIVER WAY MODE COUNT CAUSE...: a driver domain dies COUNT times by each cause in turn, under a guest's loads, and comes back. Of
# each time a line says what the guest has seen of it:
#
#   crash CAUSE outage=MS from=MS lost=N wrong=N errors=N reinit=MS | what tandemd says of it
#
# WAY: fresh, standby if another one waits, or snapshot if it is rolled back. MODE: vm, or twin-mirror if the way out is its driver's twin.
driver=$1 way=$2 mode=$3 count=$4
shift 4
. /xen/driving.sh
. /xen/switching.sh
. /xen/supervising.sh
# The log of a console keeps the name that its domain was created with.
log_of() {
	local name=$1
	[ "$name" != dd ] || ! grep 'recovered, ' $daemon_log | tail -n 1 | grep -q 'handed over' || name=dd-standby
	echo $logs/guest-$name.log
}
mib=4
# A failure does not come sooner after the last one.
apart_s=10
# An aim at one row is missed, not the run, if it takes long.
patience_s=300

quit() {
	say "restart FAIL $1"
	{ cat /tmp/quit; tail -n 6 $daemon_log; tail -n 8 $(log_of dd); xl list; } 2> /dev/null | quoted | while read -r line; do say "told $line"; done
	xl debug-keys qd
	exit
}
# must WORDS COMMAND...
must() {
	local words=$1
	shift
	"$@" > /tmp/quit 2>&1 || quit "$words"
}

# within SECONDS COMMAND...: as wait_for, of commands that take their time themselves
within() {
	local until=$(($(cut -d. -f1 /proc/uptime) + $1))
	shift
	until "$@"; do
		[ $(cut -d. -f1 /proc/uptime) -lt $until ] || return 1
		usleep 200000
	done
}

supervise() {
	for line in 'crashes = 1000000' 'within-s = 1' 'back-off-ms = 100' "$@"; do echo "$line" >> /etc/tandem/tandemd.toml; done
}

# What a driver domain of the network is, and what a guest does meanwhile.
net_machine() {
	local job=pci+bridge_switch:$driver keys=() lines=()
	[ $way = fresh ] || job=standby:$driver keys=('standby = 1' 'reset = "driver"')
	[ $way != snapshot ] || keys=('snapshot = true' 'reset = "driver"')
	# Nobody but twins has the CPUs that come beside the first.
	[ $mode = vm ] || job=$job+twin_kept keys+=('twin = true') lines=('vcpus=1' 'maxvcpus=4')
	supervised_machine $job "extra='$kernel_args oops=panic iommu=soft swiotlb=4096 tandem.do=$job+drive'" "${lines[@]}" || quit 'no machine'
	supervised
	supervise "${keys[@]}"
	must 'tandemd does not start' daemon_starts
	config u1 "$(plug 3)"
	must 'no guest' boot u1
	must 'the guest has no interface' plugged_address u1 3
	must 'no way out' daemon_said 1 'it is the way out'
	must 'the outside does not answer' outside_answers u1 60
	[ $mode = vm ] || must 'no twin' wait_for 120 by_twin
}
by_twin() { tandemd --list | grep 'way out: dd by its card'; }
net_loads() {
	in_guest u1 20 ': > /tmp/ended; netprobe 10.9.0.1 20 > /tmp/load 2>&1 & ping 10.9.0.1 > /tmp/pings 2>&1 &'
	local each
	for each in put get; do
		in_guest u1 20 "(while [ ! -e /tmp/stop ]; do tcptest $each 10.9.0.1 65536 50 > /tmp/$each 2>&1; grep -v '^tcp at' /tmp/$each >> /tmp/ended; done) > /dev/null 2>&1 &"
	done
}
# state: gaps so far, lost connections, wrong blocks or datagrams, errors; then what has to become more
net_state() {
	in_guest u1 20 'echo state $(grep -c ^gap /tmp/load) $(grep -c FAIL /tmp/ended) $(cat /tmp/load /tmp/ended | grep -cE "^(tcp )?wrong") 0 $(grep -c "bytes from" /tmp/pings) $(tail -n 1 /tmp/put | grep -o "[0-9]*$") $(tail -n 1 /tmp/get | grep -o "[0-9]*$")' | sed -n 's/^state //p'
}
net_ends() {
	in_guest u1 20 'touch /tmp/stop; killall tcptest netprobe ping'
	check packets-go-on said 'net ok' u1 120 "nettest eth0 10.9.0.1 2 64"
	check streams-go-on said 'tcp ok' u1 120 "tcptest get 10.9.0.1 2"
	# Page tables of the place where the twin was, for the next one there.
	[ $mode = vm ] || remember_less 128
}

disk_machine() {
	local class=0x0108 node=/dev/nvme0n1 job=pci+backend:$driver keys=()
	[ $way = fresh ] || job=standby_disk:$driver keys=('standby = 1' 'reset = "driver"')
	[ $driver = nvme ] || class=0x0106 node=/dev/sda
	modprobe xen-pciback
	nic=$(devices class $class | head -n 1)
	must 'the device cannot leave dom0' xl pci-assignable-add $nic
	driving dd "pci=['$nic,permissive=1']" "extra='$kernel_args oops=panic iommu=soft swiotlb=4096 tandem.do=$job+drive'"
	mkdir -p $logs /etc/tandem
	: > $(log_of dd)
	printf '[service.disk]\nkind = "disk"\ndriver-domain = "dd"\n' > /etc/tandem/tandemd.toml
	must 'tandemd does not start' daemon_starts
	remember
	# The service's domain keeps the pages between guest and driver domain: two sets of 65, and a table for them.
	remember_less 528
	daemon_ends
	printf '[service.disk.supervise]\nconfig = "/tmp/dd.cfg"\n' >> /etc/tandem/tandemd.toml
	supervise "${keys[@]}"
	must 'tandemd does not start again' daemon_starts
	must 'nobody has the disks' daemon_said 1 'it has the disks' 200
	config u1 "disk=['format=raw,vdev=xvda,access=rw,backend=disk,script=disk-plug,target=$node']"
	must 'no guest' boot u1
	must 'the guest has no disk' in_guest u1 90 'modprobe xen-blkfront; wait_for 80 test -b /dev/xvda'
}
disk_loads() { in_guest u1 20 "diskload /dev/xvda $mib $mib > /tmp/load 2>&1 &"; }
disk_state() {
	in_guest u1 20 'echo state $(grep -c ^gap /tmp/load) 0 $(grep -c ^wrong /tmp/load) $(grep -cE "^error|FAIL" /tmp/load) $(sed "s/^ *\([0-9]*\) .*/\1/" /sys/block/xvda/stat)' | sed -n 's/^state //p'
}
disk_ends() {
	check all-blocks-are-right said 'disk ok' u1 200 "killall diskload; wait_for 180 grep '^disk' /tmp/load; tail -n 1 /tmp/load"
	# As the host wants to find it.
	check the-disk-is-right said 'disk ok' u1 200 "disktest /dev/xvda $mib 2"
	no_errors() { in_guest u1 10 'dmesg | grep -iE "i/o error|blkfront.*error|bug:|oops" || true' | tee /tmp/errors; ! grep -q . /tmp/errors; }
	check the-guest-saw-no-error no_errors
}

# dies CAUSE SEED
dies() {
	local text=$driver
	[ $driver != ahci ] || text=libahci
	case $1 in
	panic) tell_dd 'echo c > /proc/sysrq-trigger' ;;
	destroyed) xl destroy dd ;;
	wedged) tell_dd job_wedge ;;
	wild) tell_dd "job_harm wild $2" ;;
	text) tell_dd "job_harm text $2 $text" ;;
	twind) in_guest dd 20 'kill -9 $(cat /tmp/twind.pid)' && wait_for 30 eval '! by_twin' ;;
	esac
}
# count_recoveries: sets $recoveries
count_recoveries() {
	local line lines
	recoveries=0
	mapfile -t lines < $daemon_log
	for line in "${lines[@]}"; do
		[[ $line != *'recovered, '* ]] || recoveries=$((recoveries + 1))
	done
}
# comes_back CAUSE COUNT: it has recovered more than so often. All domains share a processor, and a guest would wait for each process that is started
# here: bash looks and waits by itself.
mkfifo /tmp/never && exec 9<> /tmp/never
comes_back() {
	local tries
	[ $1 != twind ] || { within $patience_s by_twin; return; }
	for ((tries = 5 * patience_s; tries > 0; tries--)); do
		count_recoveries
		[ $recoveries -le $2 ] || return 0
		read -r -t 0.2 -u 9
	done
	return 1
}
# goes_on STATE...: all that has to become more since is more
goes_on() {
	local before=("$@") now n
	now=($(${kind}_state)) || return 1
	for n in ${!before[@]}; do
		[ $n -lt 4 ] || [ "${now[n]:-0}" -gt "${before[n]:-0}" ] || { echo "now ${now[*]}"; return 1; }
	done
}
# died CAUSE SEED: once
died() {
	local before=($(${kind}_state)) came after line gap reinit=
	: > $(log_of dd)
	count_recoveries
	came=$recoveries
	dies $1 $2 > /tmp/quit 2>&1
	must "after $1: it does not come back" comes_back $1 $came
	after=($(${kind}_state))
	must "after $1: not all goes on, of ${after[*]}" within $patience_s goes_on "${after[@]}"
	after=($(${kind}_state))
	gap=($(in_guest u1 20 "grep ^gap /tmp/load | tail -n +$((before[0] + 1)) | sort -n -k 3 | tail -n 1" | sed -n 's/^gap //p'))
	if [ $1 != twind ]; then
		line=$(grep 'recovered, ' $daemon_log | tail -n 1 | sed 's/.*recovered, //')
		reinit=$(in_guest dd 20 "job_reinit $driver" | sed -n 's/^reinit //p')
	fi
	say "crash $1 outage=${gap[1]} from=${gap[0]} lost=$((after[1] - before[1])) wrong=$((after[2] - before[2])) errors=$((after[3] - before[3])) reinit=$reinit | $line"
}
daemon_has() {
	local pid=$(cat /tmp/tandemd.pid)
	say "daemon $1 files=$(ls /proc/$pid/fd | wc -l) kib=$(sed -n 's/VmRSS:[ \t]*\([0-9]*\).*/\1/p' /proc/$pid/status)"
}
waits() { [ $way != standby ] || must 'no other one waits' daemon_said $1 'waits to take its place' $patience_s; }

kind=net
case $driver in nvme | ahci) kind=disk ;; esac
${kind}_machine
waits 1
${kind}_loads
sleep 2
must 'the loads do not begin' within 60 goes_on $(${kind}_state)
failures=0
for n in $(seq $count); do
	for cause in "$@"; do
		at=$(cut -d. -f1 /proc/uptime)
		died $cause $((n * 97 + failures))
		[ $failures != 1 ] || daemon_has first
		# A twind that ends takes no driver domain with it.
		[ $cause = twind ] || failures=$((failures + 1))
		waits $((failures + 1))
		past=$(($(cut -d. -f1 /proc/uptime) - at))
		[ $past -ge $apart_s ] || sleep $((apart_s - past))
	done
done
daemon_has last
# What came when: of all of it so much that a picture shows.
in_guest u1 60 "grep -m 1 -A 30 '^bins' /tmp/load" | sed -n 's/^bins /arrivals /p' | while read -r line; do say "$line"; done
${kind}_ends
# What a damaged kernel tells its device to do is for the IOMMU to stop.
case " $* " in *' wild '* | *' text '*) ;; *) check no-access-was-stopped no_dma_stopped ;; esac
check it-is-parked eval "twinctl park $kind && gone dd 60 && gone dd-standby 60"
check destroy-the-guest eval 'xl destroy u1 && gone u1'
supervised_machine_ends
say "restart ok"
