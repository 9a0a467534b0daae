# twin-faults.sh DRIVER RUNS SEED [--data]: faulty twins of a live driver, one after the other, while a guest's stream goes by them and two
# neighbours stream to each other at the same switch. Whatever a twin does, the neighbours' bytes are right, all frames agree, and Linux
# is the way out again. A faulty driver may spoil its own domain, which then gets a successor.
driver=$1
runs=${2:-40}
seed=${3:-1}
data=$4
# A domain that hangs is noticed when its batch should have been over.
at_once=$((runs < 40 ? runs : 40))
. /xen/driving.sh
. /xen/switching.sh
. /xen/twinning.sh
twin_machine $driver u1 || exit

neighbour() { config u$1 "$(plug $1)" && boot u$1 && plugged_address u$1 $1; }
check a-neighbour neighbour 4 || exit
check another neighbour 5 || exit
neighbours_stream() { in_guest u5 10 '(tcptest serve > /tmp/served 2>&1 &)' && in_guest u4 10 '(tcptest put 10.9.0.5 1048576) > /tmp/stream 2>&1 &' && moves u4; }
check neighbours-stream neighbours_stream
# Questions go on while a stream that was interrupted is silent. One that has ended is counted, and another begins.
ended=0
goes_on() {
	local out=$(in_guest u1 10 'pidof netprobe > /dev/null || netprobe 10.9.0.1 20 > /dev/null 2>&1 & pidof tcptest > /dev/null || echo ended')
	! echo "$out" | grep -q '^ended' && return
	ended=$((ended + 1))
	in_guest u1 10 '(tcptest put 10.9.0.1 65536) > /tmp/stream 2>&1 &'
}
check a-stream-without-an-end endless u1 || { tell u1; exit; }
check questions-without-an-end goes_on

# The way out is the driver domain's interface, and packets go there.
linux_is_the_way_out() { wait_for 10 eval 'tandemd --list | grep -q "way out: dd by its interface"' && moves u1; }
renewed=0
# A card that has no reset of its own may not take the first driver that comes after what it was told last.
renew() {
	local try
	for try in 1 2 3; do
		renewed=$((renewed + 1))
		! xl domid dd > /dev/null 2>&1 || xl destroy dd
		gone dd && drives && goes_on && linux_is_the_way_out && return
	done
	return 1
}
# Goes on at run $from. A driver domain that does not answer, or whose interface does not come back, is renewed, and the run that did it
# is not repeated.
batch() {
	local log=$(log_of dd) size said
	size=$(wc -c < $log)
	in_guest dd $((at_once * 2 + 60)) "[ -e /dev/tandem ] || job_twin_module; [ -e /dev/poke ] || job_poke_module; twin-faults --interface eth0 --seed $seed --from $from --count $at_once $data" > /tmp/batch 2>&1
	tail -c +$((size + 1)) $log | tr -d '\r' | grep -aE '^faults: (run|try)' > /tmp/runs
	cat /tmp/runs >> /tmp/faults
	said=$(grep '^faults: try' /tmp/runs | tail -n 1 | sed 's/faults: try \([0-9]*\):.*/\1/')
	if grep -q '^faults: over' /tmp/batch; then
		from=$((from + at_once))
		goes_on && linux_is_the_way_out && return
	else
		from=$((${said:-$from} + 1))
	fi
	# What its kernel died of, if it did: in other words than those that a kernel of which nobody expects it dies with.
	{ tail -c +$((size + 1)) $log | tr -d '\r' | grep -aE 'BUG:|RIP: |^\[.*[a-z_]+\+0x[0-9a-f]+/' | head -n 14; tail -n 3 /tmp/batch; } |
		sed 's/BUG: //; s/Oops: //; s/Kernel panic/panic/; s/soft lockup - //; s/Call Trace/trace/' | quoted | while read -r line; do say "told at run $from: $line"; done
	renew
}
: > /tmp/faults
from=0
while [ $from -lt $runs ]; do
	[ $((runs - from)) -gt $at_once ] || at_once=$((runs - from))
	batch || { check linux-is-the-way-out-at-run-$from false; tell u1; exit; }
done
count() { grep -c " $1\$" /tmp/faults; }
tries() { grep -c ': try' /tmp/faults; }
faults() { awk '/: try/ { sum += $4 } END { print sum + 0 }' /tmp/faults; }
say "faults $(faults) in $(tries) runs: $(count not-rewritten) not rewritten, $(count refused) refused, $(count aborted) aborted, $(count survived) survived, $(count idle) without a packet, $(($(tries) - $(grep -c ': run' /tmp/faults))) that the driver domain did not; $renewed driver domains renewed, $ended of the guest's connections ended"
some() { [ $(faults) -gt 0 ] && [ $(count aborted) -gt 0 ] && [ $(count survived) -gt 0 ]; }
check there-were-faults some
check the-neighbours-stream-goes-on moves u4
check it-is-right in_guest u4 10 '! grep . /tmp/stream'
check the-outside-answers-still outside_answers u1
check frames-agree audit
