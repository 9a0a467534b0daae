# twin-queues.sh DRIVER MIB: two guests behind the twin of a driver whose card has two transmit queues: each guest's packets go by one of them, by
# the driver's own counts. The way is switched while packets flow, and a twin is aborted.
driver=$1
mib=${2:-2}
. /xen/driving.sh
. /xen/switching.sh
. /xen/twinning.sh
cpus=2
twin_machine $driver u1 || exit
config u2 "$(plug 4)"
check another-guest-starts boot u2 || exit
check its-address plugged_address u2 4
check the-outside-answers-it outside_answers u2

# by_queue: packets that were sent by each queue so far, as the driver's statistics have it
by_queue() { in_guest dd 20 "ethtool -S eth0 | sed -n 's/^ *ucast pkts tx: \([0-9]*\)/\1/p'"; }
say "its interrupts and queues:" $(in_guest dd 20 'sed -n "s/.*xen-pirq *//p" /proc/interrupts; ls /sys/class/net/eth0/queues')
same it-has-two-queues 2 "$(by_queue | wc -l)"

in_guest dd 60 'job_twin_module damage=1; job_twind --interface eth0'
check the-twin-has-the-card twind_says '^twind: attached' || { tell u1; exit; }
# use_queues LEAST COMMAND...: while the command runs, so many packets or more go by each of two queues
use_queues() {
	local least=$1 n before after used=0
	shift
	before=($(by_queue))
	"$@" || return 1
	after=($(by_queue))
	echo "${before[@]} packets before, ${after[@]} after"
	for n in ${!after[@]}; do [ $((after[n] - before[n])) -lt $least ] || used=$((used + 1)); done
	[ $used -ge 2 ]
}
# Both guests at one time: datagrams, then streams each way. The other end checks all bytes of them.
packets() {
	in_guest u2 10 "nettest eth0 10.9.0.1 $mib 64 > /tmp/packets 2>&1 &"
	said 'net ok' u1 $((60 + mib * 8)) "nettest eth0 10.9.0.1 $mib 64" || return 1
	said 'net ok' u2 $((60 + mib * 8)) 'wait_for 60 grep -q "net " /tmp/packets; cat /tmp/packets'
}
check packets-of-both-guests use_queues 500 packets || tell u1
streams() {
	in_guest u2 10 "(tcptest put 10.9.0.1 $mib; tcptest get 10.9.0.1 $mib) > /tmp/streams 2>&1 &"
	said 'tcp ok' u1 $((60 + mib * 8)) "tcptest get 10.9.0.1 $mib" && said 'tcp ok' u1 $((60 + mib * 8)) "tcptest put 10.9.0.1 $mib" || return 1
	said '^2$' u2 $((60 + mib * 8)) 'wait_for 60 grep -q "tcp .* get" /tmp/streams; grep -c "tcp ok" /tmp/streams'
}
check streams-of-both-guests use_queues 100 streams || tell u1
check a-stream-without-an-end endless u1
check and-another-one endless u2
goes() { twinctl mode net $1 && twinctl status net | grep "^net: $1, by dd" && moves u1 && moves u2; }
for n in 1 2 3; do
	check "round-$n-by-linux" goes vm
	check "round-$n-by-the-twin" use_queues 20 goes twin-mirror
done
aborted() { twinctl status | tee /tmp/told; grep -qE 'aborted .* at .*[a-z]\+0x[0-9a-f]+: it accessed memory' /tmp/told; }
check the-twin-is-damaged twinctl damage net
check it-says-where wait_for 20 aborted
check the-streams-go-on-by-linux eval 'moves u1 && moves u2'
check a-twin-is-loaded-again eval "twinctl load net && twinctl status net | grep '^net: twin-mirror'"
check the-streams-go-on-by-it use_queues 20 eval 'moves u1 && moves u2' || tell u1
# One of the guests goes in the middle, and another one comes.
leaves() { xl destroy u2 && gone u2 && moves u1; }
check a-guest-goes leaves
check and-comes-again eval 'boot u2 && plugged_address u2 4 && outside_answers u2 && endless u2 && moves u1'

check no-warnings no_warnings || tell
# When it starts, QEMU's vmxnet3 reads a list of no addresses at address 0.
check no-access-was-stopped no_dma_stopped "$([ $driver != vmxnet3 ] || echo 'reading address 0x0:')"
check frames-agree audit
destroyed() { local d; for d in dd u1 u2; do xl destroy $d && gone $d || return 1; done; }
check destroy destroyed
# But page tables of the place where the twin was, for the next one there.
remember_less 128
check nothing-stays nothing_stays
check frames-agree-at-the-end audit
check assignable-remove xl pci-assignable-remove $nic
