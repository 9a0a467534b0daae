# messages.sh DRIVER MIB: a driver turns its card's messages off and on again while it begins. In a driver domain that got its card from another instance it has them
# all the same, for several queues each way, and so has its twin: packets of two guests go by all of them, by the driver's own counts.
driver=$1
mib=${2:-2}
. /xen/driving.sh
. /xen/switching.sh
. /xen/supervising.sh
# As many queues as it has processors. Nobody but twins has those that come beside them.
cpus=2
supervised_machine standby:$driver+twin_kept "vcpus=$cpus" 'maxvcpus=4' || exit
supervised 'crashes = 20' 'back-off-ms = 100' 'standby = 1' 'twin = true'
check tandemd-starts-again daemon_starts || exit
check the-driver-domain-comes daemon_said 1 'it is the way out' 240
# What one does that never waits: how much it has run, twice, and what it said last.
tell_of_the_other() {
	{ xl vcpu-list; sleep 4; xl vcpu-list; tail -n 6 $(log_of dd-standby); } 2>&1 | quoted | while read -r line; do say "told $line"; done
	xl debug-keys qr
}
check another-one-waits daemon_said 1 'waits to take its place' 240 || { tell_of_the_other; exit; }
# The log of a console has the name that its domain was created with.
created=
in_dd() {
	local its_log=$created
	in_guest dd "$@"
}
queues() { in_dd 20 'ls /sys/class/net/eth0/queues' | grep -oE '[rt]x-[0-9]+' | wc -l; }
say "queues where the PCI back end answers: $(queues)"
check another-one-takes-its-place twinctl restart net
check and-is-the-way-out daemon_said 2 'it is the way out' 240 || exit
created=dd-standby
by_twin() { tandemd --list | grep 'way out: dd by its card'; }
check by-its-twin wait_for 300 by_twin || { in_dd 10 'cat /tmp/twind; dmesg | tail -n 4'; exit; }
say "its interrupts:" $(in_dd 20 'sed -n "s/.*xen-pirq *//p" /proc/interrupts')
same it-has-messages $((2 * cpus)) "$(in_dd 20 'grep -cE "msi-x +eth0-.*[0-9]$" /proc/interrupts' | tail -n 1)"
same queues-each-way $((2 * cpus)) "$(queues)"
for n in 1 2; do
	config u$n "$(plug $((n + 2)))"
	check guest-$n-starts boot u$n || exit
	check address-of-guest-$n plugged_address u$n $((n + 2))
	check the-outside-answers-guest-$n outside_answers u$n 30
done
# by_queue DIRECTION: packets by each queue so far
by_queue() { in_dd 20 "ethtool -S eth0 | sed -n 's/^ *${1}_queue_[0-9]*_packets: \([0-9]*\)/\1/p'"; }
# use_queues DIRECTION COMMAND...: while the command runs, packets of its go by each queue
use_queues() {
	local direction=$1 n before after used=0
	shift
	before=($(by_queue $direction))
	"$@" || return 1
	after=($(by_queue $direction))
	echo "${before[@]} packets before, ${after[@]} after"
	for n in ${!after[@]}; do [ $((after[n] - before[n])) -lt 100 ] || used=$((used + 1)); done
	[ $used = $cpus ]
}
# packets: how many have gone by the twin
packets() { twinctl stats net | awk '/^net outside / { sum += $4 } END { print sum + 0 }'; }
before=$(packets)
# A card deals streams by their addresses and ports. Of eight all go by one queue one time in 128, so each guest has more.
streams() {
	local guest
	for guest in u1 u2; do
		in_guest $guest 20 "for n in 1 2 3 4 5 6 7 8; do (tcptest $1 10.9.0.1 $mib > /tmp/stream-\$n 2>&1 &); done"
	done
	for guest in u1 u2; do
		said '^8$' $guest $((120 + mib * 30)) "wait_for $((60 + mib * 15)) eval '! pidof tcptest > /dev/null'; cat /tmp/stream-? | grep -c '^tcp ok'" || { in_guest $guest 20 'tail -n 2 /tmp/stream-?; netstat -tn'; return 1; }
	done
}
check streams-to-the-outside use_queues tx streams put
check streams-from-the-outside use_queues rx streams get
say "packets by the twin: $(($(packets) - before))"
check they-went-by-the-twin eval '[ $(($(packets) - before)) -gt 1000 ] && by_twin'
# Messages again, in the same domain.
anew() { in_dd 60 'ip link set eth0 down && modprobe -r '$driver' && modprobe '$driver' && wait_for 20 test -e /sys/class/net/eth0 && ip link set eth0 master xenbr0 up'; }
check the-driver-begins-anew anew
check the-outside-answers-again outside_answers u1 60
same it-has-them-again $((2 * cpus)) "$(queues)"
# The driver is told to use one queue, and two again: each time it makes its polls and interrupts anew, and tells nobody. The twin has the new ones.
passed_on_by_linux() { in_dd 20 'cat /sys/devices/vif-*/net/*/statistics/tx_packets' | awk '/^[0-9]+/ { sum += $1; n++ } END { if (!n) exit 1; print sum }'; }
# the_twin_receives COMMAND...: the command succeeds, and next to nothing of what comes in meanwhile goes by Linux. Who is not told how much that is knows nothing.
the_twin_receives() {
	local before after
	before=$(passed_on_by_linux) || { echo 'no count before'; return 1; }
	"$@" || return 1
	after=$(passed_on_by_linux) || { echo 'no count after'; return 1; }
	echo "$before packets before, $after after"
	[ $after -ge $before ] && [ $((after - before)) -le 500 ]
}
for n in 1 $cpus; do
	check it-is-to-use-$n in_dd 30 "ethtool -L eth0 combined $n && wait_for 20 grep -q 1 /sys/class/net/eth0/carrier"
	check the-outside-answers-with-$n outside_answers u1 60
	check by-its-twin-with-$n wait_for 60 by_twin
	check the-twin-receives-with-$n the_twin_receives streams get
done
check by-all-queues-again use_queues rx streams get
check no-access-was-stopped no_dma_stopped
for n in 1 2; do check destroy-guest-$n eval "xl destroy u$n && gone u$n"; done
check it-is-parked eval 'twinctl park net && gone dd 60 && gone dd-standby 60'
# But page tables of the place where the twin was, for the next one there.
remember_less 128
supervised_machine_ends
