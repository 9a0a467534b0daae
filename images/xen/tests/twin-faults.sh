# twin-faults.sh DRIVER RUNS SEED [--data [AT-ONCE]]: faulty twins of a live driver, one after the other, while a guest asks and streams by them and two
# neighbours stream to each other at the same switch. Whatever a twin does, the neighbours' bytes are right, all frames agree, and Linux
# is the way out again. A faulty driver may spoil its own domain: then the one that waits takes its place.
driver=$1
runs=${2:-40}
seed=${3:-1}
data=$4${5:+ --at-once $5}
# So many runs are one process in the driver domain; after them it is looked whether Linux is the way out.
at_once=500
# A driver domain that tells of no run for so long hangs.
silent_s=15
. /xen/driving.sh
. /xen/switching.sh
. /xen/supervising.sh
# Of two CPUs one does what the twin asks for while the other waits for the twin. Nobody but twins has those that come beside them.
cpus=2
# These would have a queue for each.
case $driver in vmxnet3 | virtio_net) cpus=1 ;; esac
supervised_machine standby:$driver "vcpus=$cpus" 'maxvcpus=4' 'cpu_weight=2048' \
	"extra='$kernel_args oops=panic iommu=soft swiotlb=4096 softlockup_panic=1 sysctl.kernel.watchdog_thresh=5 tandem.do=standby:$driver+drive'" || exit
# A faulty twin may well send nothing for a while.
supervised 'crashes = 1000000' 'within-s = 1' 'back-off-ms = 100' 'undrained-ms = 60000' 'standby = 1'
check tandemd-starts-again daemon_starts || exit
check a-driver-domain-is-the-way-out daemon_said 1 'it is the way out' 240 || exit
guest() { config u$1 "$(plug $1)" "cpu_weight=${2:-256}" && boot u$1 && plugged_address u$1 $1; }
check a-guest guest 3 2048 || exit
check a-neighbour guest 4 || exit
check another guest 5 || exit
check the-outside-answers outside_answers u3 60 || exit
# Who has lost an address asks for it once a second, and sends nothing until then; a run is shorter.
keeps_address() { in_guest u3 10 "arp -s 10.9.0.1 \$(arp -n | sed -n 's/.*(10.9.0.1) at \([^ ]*\) .*/\1/p') && arp -n | grep PERM"; }
check it-keeps-that-address keeps_address
# All share two processors, so streams rest now and then; what they say of that is of no interest.
stream() { in_guest $1 10 "(tcptest put $2 1048576 $3 2>&1 | grep -v '^tcp at' > /tmp/stream) &" && moves $1; }
check neighbours-stream eval 'in_guest u5 10 "(tcptest serve > /tmp/served 2>&1 &)" && stream u4 10.9.0.5 100'
# Questions go on while a stream that was interrupted is silent. One that has ended is counted, and another begins.
ended=0
goes_on() {
	local out
	out=$(in_guest u3 10 'pidof netprobe > /dev/null || netprobe 10.9.0.1 4 > /dev/null 2>&1 & pidof tcptest > /dev/null || echo ended') || { echo "$out"; return 1; }
	! echo "$out" | grep -q '^ended' && return
	ended=$((ended + 1))
	in_guest u3 10 "(tcptest put 10.9.0.1 1048576 100 > /dev/null 2>&1 &)"
}
check questions-and-a-stream-without-an-end goes_on
ended=0

# The way out is the driver domain's interface, and packets go there.
linux_is_the_way_out() { wait_for 30 eval 'tandemd --list | grep -q "way out: dd by its interface"' && outside_answers u3 20; }
# The log of a console keeps the name that its domain was created with.
dd_log() { [ $renewed = 0 ] && log_of dd || log_of dd-standby; }
renewed=0
# renews HOW: the driver domain is gone, or goes, and another one is the way out
renews() {
	renewed=$((renewed + 1))
	[ "$(xl domid dd 2> /dev/null)" != "$id" ] || [ "$1" = dies ] || xl destroy $id
	daemon_said $((ways + 1)) 'it is the way out' 300
}
# watched: the batch is over, or its domain has died, or hangs: what is in /tmp/batch says how
watched() {
	local still=0 size=0 looks=0 now
	while :; do
		usleep 1000000
		tail -c +$((begun + 1)) $log | tr -d '\r' > /tmp/batch
		! grep -q "TANDEM: did b$from " /tmp/batch || return 0
		[ "$(xenstore-read /local/domain/$id/name 2> /dev/null)" = dd ] || { echo dies; return 1; }
		now=$(wc -c < /tmp/batch)
		still=$((now > size ? 0 : still + 1))
		size=$now
		looks=$((looks + 1))
		[ $((looks % 20)) != 0 ] || say "$(tail -n 1 /tmp/batch | cut -c1-80), $(grep '^faults: ms' /tmp/batch | tail -n 1)" > /dev/console
		[ $still -lt $silent_s ] || { echo hangs; return 1; }
	done
}
# Goes on at run $from. A driver domain that dies, hangs, or whose interface does not come back, gets a successor, and the run that did it is
# not repeated.
batch() {
	local log=$(dd_log) begun how since=$(date +%s) done_s said ways=$(grep -c 'it is the way out' $daemon_log)
	begun=$(wc -c < $log)
	id=$(xl domid dd)
	echo "b$from [ -e /dev/tandem ] || job_twin_module; [ -e /dev/poke ] || job_poke_module; twin-faults --interface eth0 --seed $seed --from $from --count $at_once $data" > $(tty_of dd)
	how=$(watched)
	done_s=$(($(date +%s) - since))
	grep -aE '^faults: (run|try|its driver)' /tmp/batch >> /tmp/faults
	said=$(grep -a '^faults: try' /tmp/batch | tail -n 1 | sed 's/faults: try \([0-9]*\):.*/\1/')
	# Where the time has gone, and what of it was the beginning.
	say "batch of run $from: $(sed -n 's/^faults: ms //p' /tmp/batch | tail -n 1), $done_s s, ${how:-$(tail -n 2 /tmp/batch | head -n 1)}, $(grep -a '^faults: try' /tmp/batch | tail -n 1)"
	say "$(grep '^twind: ' /tmp/batch | tail -n 1)"
	say "so far $(result)"
	if grep -q '^faults: over' /tmp/batch; then
		from=$((from + at_once))
		goes_on && linux_is_the_way_out && return
	else
		from=$((${said:-$from} + 1))
	fi
	# What its kernel died of, if it did: in other words than those that a kernel of which nobody expects it dies with.
	grep -aE 'BUG:|RIP: |^\[.*[a-z_]+\+0x[0-9a-f]+/|^faults: ended' /tmp/batch | head -n 8 |
		sed 's/BUG: //; s/WARNING: /warns, /; s/Oops: //; s/Kernel panic/panic/; s/soft lockup - //; s/Call Trace/trace/' | quoted | while read -r line; do say "told at run $from: $line"; done
	renews $how || return 1
	say "told at run $from: $(grep 'recovered, ' $daemon_log | tail -n 1 | quoted)"
	goes_on && linux_is_the_way_out
}
tell() {
	{
		in_guest u3 10 'grep eth0 /proc/net/dev; grep -E "^Tcp:" /proc/net/snmp; netstat -tn | tail -n 2; arp -n'
		tandemd --list
		xl list
		tail -n 3 $daemon_log
		tail -n 8 $(dd_log)
		# Is it this guest alone that does not answer, and what did it say last?
		tail -n 6 $(log_of u3)
		in_guest u4 10 'ping -c 1 -W 2 10.9.0.5'
	} 2>&1 | quoted | while read -r line; do say "told $line"; done
	xl debug-keys adenqr
	# Is it still alive?
	sleep 3
	xl debug-keys an
}
# result: what has come of all runs so far
result() {
	awk -v renewed=$renewed -v ended=$ended '
		/: try/ { tries++; faults += $4; of[$5 ~ /^Image/ ? "image" : $5 ~ /^Data/ ? "data" : "text"] += $4 }
		/: run/ { runs++; came[$NF]++ }
		/begins anew/ { anew++ }
		END {
			printf "faults %d in %d runs (%d in text, %d in images, %d in data): %d not rewritten, %d refused, %d aborted, %d survived, %d without a packet, %d that the driver domain did not; ",
				faults, tries, of["text"], of["image"], of["data"], came["not-rewritten"], came["refused"], came["aborted"], came["survived"], came["idle"], tries - runs
			printf "%d times the driver began anew, %d driver domains renewed, %d of the guest\047s connections ended\n", anew, renewed, ended
		}' /tmp/faults
}
: > /tmp/faults
from=0
while [ $from -lt $runs ]; do
	[ $((runs - from)) -gt $at_once ] || at_once=$((runs - from))
	batch || { check linux-is-the-way-out-at-run-$from false; tell; exit; }
done
say "$(result)"
some() { grep -q 'aborted$' /tmp/faults && grep -q 'survived$' /tmp/faults; }
check there-were-faults some
check the-neighbours-stream-goes-on moves u4
check it-is-right in_guest u4 10 'pidof tcptest && ! grep . /tmp/stream'
check the-outside-answers-still outside_answers u3
check frames-agree audit
check it-is-parked eval 'twinctl park net && gone dd 60 && gone dd-standby 60'
for guest in u3 u4 u5; do check destroy-$guest eval "xl destroy $guest && gone $guest"; done
# But page tables of the place where twins were, for the next one there.
remember_less 128
supervised_machine_ends
