# twin-again.sh DRIVER ROUNDS: twins of a driver come and go while a guest's stream goes on through it. A twin goes in any moment: its
# daemon is killed. Linux is the way out until there is another.
driver=$1
rounds=${2:-3}
. /xen/driving.sh
. /xen/switching.sh
. /xen/twinning.sh
twin_machine $driver u1 || exit

check a-stream-without-an-end endless u1 || { tell u1; exit; }
# Linux in the driver domain sends by the same queue now and then: both want its lock.
sends_too() { in_guest dd 10 'ip addr add 10.8.0.2/24 dev eth0; ip neigh add 10.8.0.1 lladdr 52:54:00:70:65:72 dev eth0; (ping -i 0.003 -s 1000 10.8.0.1 > /dev/null 2>&1 &)'; }
check the-driver-domain-sends-too sends_too
for round in $(seq $rounds); do
	twin_begins
	check twin-$round twind_says '^twind: attached' || { tell u1; exit; }
	check the-stream-goes-on-by-twin-$round moves u1 || { tell u1; exit; }
	check the-outside-answers-$round outside_answers u1 || { tell u1; exit; }
	check twin-$round-goes twin_dies || { tell u1; exit; }
	check the-stream-goes-on-by-linux-$round moves u1 || { tell u1; exit; }
done
check no-warnings no_warnings || tell u1
check no-access-was-stopped no_dma_stopped
check frames-agree audit
twin_machine_ends u1
