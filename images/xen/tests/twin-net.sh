# twin-net.sh DRIVER MIB MODE [short]: guests on the hypervisor's switch reach the outside by a twin of a driver domain's driver. Without the twin
# Linux in the driver domain is the way, and the guests do not notice which it is. `short`: but for what is the same for all drivers.
driver=$1
mib=${2:-4}
mode=${3:-twin-mirror}
is_short=${4:+yes}
# Of datagrams, and of streams at the same time: each must arrive, so many more of them say nothing new.
few=$((mib < 64 ? mib : 64))
. /xen/driving.sh
. /xen/switching.sh
. /xen/twinning.sh
twin_machine $driver u1 || exit

twin_begins
check the-twin-has-the-card twind_says '^twind: attached' || { tell u1; exit; }
not_bridged() { in_guest dd 10 '[ ! -e /sys/class/net/xenbr0/brif/eth0 ]'; }
check linux-does-not-bridge-it not_bridged
is_of_its_mode() { twinctl status net | tee /tmp/told; grep -q "^net: $mode, by dd" /tmp/told; }
check it-is-of-its-mode is_of_its_mode
check the-outside-answers-by-the-twin outside_answers u1 || tell u1
frames() { in_guest dd 10 'cat /sys/class/net/eth1/statistics/rx_packets' | grep -E '^[0-9]+$'; }
before=$(frames)
so_far=$(numbers)
packets() { said 'net ok' u1 $((60 + few * 8)) "$keeps && nettest eth0 10.9.0.1 $few 64"; }
check packets-to-and-from-outside packets || tell u1
by_the_twin() {
	local now=$(frames)
	echo "$before frames came to the driver domain before, $now now"
	[ -n "$before" ] && [ -n "$now" ] && [ $((now - before)) -lt 100 ]
}
check none-of-them-through-the-driver-domain by_the_twin
# Cards that do not reach all memory have their packets copied there; virtio_net has its pages of 32 KiB from there, for some twenty
# packets that it receives.
case $driver in
e1000 | 8139cp) ;;
virtio_net) check which-sleeps-meanwhile sleeps_through 20 $so_far packets ;;
*) check which-sleeps-meanwhile sleeps_through 100 $so_far packets ;;
esac
[ ! -e /tmp/sleeps ] || say "$(cat /tmp/sleeps)"
say "calls of the driver domain's functions:" $(twinctl stats net | sed -n 's/^net upcall //p')
check stream-to-outside said 'tcp ok' u1 $((60 + mib * 4)) "tcptest put 10.9.0.1 $mib" || tell u1
check stream-from-outside said 'tcp ok' u1 $((60 + mib * 4)) "tcptest get 10.9.0.1 $mib" || tell u1
# For who reads the log: how often the driver domain was asked to do something.
say "$(in_guest dd 10 "sed -n 's/ *xen-dyn.*tandem//p' /proc/interrupts" | tr -s ' ') events of the twin's for the driver domain"
# e1000 reaches 4 GiB, and domains get memory above first: then the driver domain's kernel copies what the card is to reach.
copies() { said '^[1-9]' dd 10 'mount -t debugfs debug /sys/kernel/debug; cat /sys/kernel/debug/swiotlb/io_tlb_used'; }
[ $driver != e1000 ] || [ $(xl info total_memory) -lt 4096 ] || check the-card-has-copies copies
# For who reads the log: what came by each queue of a card that has several.
in_guest dd 20 "ethtool -S eth0 | grep -E 'rx_queue_[0-9]*_packets'" > /tmp/queues && say "by queue:" $(cat /tmp/queues)
# The other end answers in each VLAN; cards take tags out, and put them in again. A tag comes on top of the longest packet.
in_a_vlan() { said ' 0% packet loss' u1 60 'modprobe 8021q && vconfig add eth0 5 > /dev/null && ip link set eth0.5 up && ip addr add 10.9.0.13/32 dev eth0.5 && ip route add 10.9.0.1 dev eth0.5 src 10.9.0.13 && wait_for 10 ping -c 1 -W 1 -I eth0.5 10.9.0.1 && ping -c 5 -i 0.2 -W 5 -s 1472 -I eth0.5 10.9.0.1 && vconfig rem eth0.5'; }
check packets-in-a-vlan in_a_vlan
by_ipv6() { said ' 0% packet loss' u1 60 'ip -6 addr add fd09::3/64 dev eth0; wait_for 10 ping -6 -c 1 -W 1 fd09::1; ping -6 -c 5 -i 0.2 -W 5 -s 1400 fd09::1'; }
check packets-by-ipv6 by_ipv6
check the-driver-domain-answers reaches u1 2
check the-driver-domain-reaches-the-outside outside_answers dd
# Another guest, and the driver domain's own Linux: the switch hands packets to them while the twin has the card.
# between NAME TO LAST [BRIDGE]: packets and streams of u1's with that domain, 10.9.0.LAST. Its interface, or the bridge where that is:
between() {
	local to=$1 last=$2 device=${3:-eth0}
	in_guest $to 20 "(tcptest serve > /dev/null 2>&1 &); (nettest serve > /dev/null 2>&1 &); modprobe 8021q && vconfig add $device 5 > /dev/null && ip addr add 10.9.5.$last/24 dev $device.5 && ip link set $device.5 up && ip -6 addr add fd09::$last/64 dev $device"
	check datagrams-with-$to said 'net ok' u1 $((60 + few * 8)) "nettest eth0 10.9.0.$last $few 64" || tell u1
	check stream-to-$to said 'tcp ok' u1 $((60 + mib * 4)) "tcptest put 10.9.0.$last $mib" || tell u1
	check stream-from-$to said 'tcp ok' u1 $((60 + mib * 4)) "tcptest get 10.9.0.$last $mib" || tell u1
	check ipv6-with-$to said ' 0% packet loss' u1 60 "wait_for 10 ping -6 -c 1 -W 1 fd09::$last; ping -6 -c 5 -i 0.2 -W 5 -s 1400 fd09::$last"
	check a-vlan-with-$to said ' 0% packet loss' u1 60 "vconfig add eth0 5 > /dev/null && ip link set eth0.5 up && ip addr add 10.9.5.3/24 dev eth0.5 && wait_for 10 ping -c 1 -W 1 10.9.5.$last && ping -c 5 -i 0.2 -W 5 -s 1472 10.9.5.$last && vconfig rem eth0.5"
}
neighbours() {
	config u2 "$(plug 4)"
	check another-guest-starts boot u2 || return
	check its-address plugged_address u2 4
	check it-answers reaches u1 4
	between u2 4
	between dd 2 xenbr0
}
[ $is_short ] || neighbours
check it-keeps-its-statistics said '^ *[a-z0-9_ ]*: [0-9]' dd 20 'ethtool -S eth0'

# The interface goes down and up while a stream goes on.
check a-stream-without-an-end endless u1
check the-interface-goes-down in_guest dd 20 'ip link set eth0 down'
check the-daemon-says-so twind_says 'eth0 is down' 30
check and-up in_guest dd 20 'ip link set eth0 up'
check the-twin-has-the-card-again twind_says '^twind: attached' 60
# For longer than there are buffers which the driver had before, and which the domain has freed: vmxnet3 has 1024 to receive into.
check the-same-stream-goes-on moves u1 16 || tell u1
# So does one of which the card is told to take longer packets, which then go both ways, and no longer ones. The stream may fill the card's
# ring when the machine stands still for a moment, and then a packet is lost: so five in a row, of fifteen. It fills the 64 descriptors of
# 8139cp again and again, and there half of the fifteen will do.
#
# virtio_net takes no packets in pieces here, and the twin's buffers are shorter: meanwhile Linux is the way.
longer() {
	[ $driver != virtio_net ] || { too_long; return; }
	# QEMU's vmxnet3 puts a packet into one buffer while nothing may put packets together for this driver, and that has 3 KiB.
	local bytes=$([ $driver = vmxnet3 ] && echo 2900 || echo 3900)
	local answer=' 0% packet loss' pings="for n in 1 2 3; do ping -c 5 -i 0.2 -W 5 -s $bytes"' 10.9.0.1 > /tmp/five; grep -q " 0% packet loss" /tmp/five && break; done; cat /tmp/five'
	[ $driver != 8139cp ] || { answer=' [1-4]\{0,1\}[0-9]% packet loss'; pings='ping -c 15 -i 0.2 -W 5 -s 3900 10.9.0.1'; }
	in_guest dd 20 'ip link set eth0 mtu 4000' && wait_for 60 not_bridged && moves u1 || return 1
	said "$answer" u1 120 "ip link set eth0 mtu 4000 && wait_for 10 ping -c 1 -W 1 10.9.0.1; $pings; ip link set eth0 mtu 1500" || return 1
	in_guest dd 20 'ip link set eth0 mtu 1500' && wait_for 60 not_bridged
}
# What stays in the switch may be longer whatever the card takes.
longer_between() {
	in_guest u2 10 'ip link set eth0 mtu 4000' && in_guest dd 20 'ip link set eth1 mtu 4000 && ip link set xenbr0 mtu 4000' || return 1
	said '^2$' u1 120 'ip link set eth0 mtu 4000; for last in 2 4; do wait_for 10 ping -c 1 -W 1 10.9.0.$last; for n in 1 2 3; do ping -c 5 -i 0.2 -W 5 -s 3900 10.9.0.$last > /tmp/five; grep " 0% packet loss" /tmp/five && break; done; done | grep -c .; ip link set eth0 mtu 1500' || return 1
	in_guest dd 20 'ip link set xenbr0 mtu 1500 && ip link set eth1 mtu 1500'
}
too_long() {
	in_guest dd 20 'ip link set eth0 mtu 4000' && twind_says 'not attached: .*MTU' 60 && moves u1 || return 1
	in_guest dd 20 'ip link set eth0 mtu 1500' && wait_for 60 not_bridged && moves u1
}
# The driver domain is paused for longer than a twin waits for its functions. What the twin asks it for then comes afterwards. A queue of its
# that is stopped then has been for longer than Linux allows: the kernel may say so, and reset the card. Nothing else may be wrong with it.
pauses() {
	no_warnings && xl pause dd && sleep 7 && xl unpause dd && moves u1 && twind_says '^twind: attached' || return 1
	no_warnings 'NETDEV WATCHDOG: .* timed out ([7-9]|[0-9]{2,})[0-9]{3} ms' || return 1
	in_guest dd 10 'dmesg -c > /dev/null'
}
# The daemon is killed: Linux is the way out again.
all() {
	check the-driver-domain-is-paused-for-a-while pauses || tell u1
	check longer-packets-in-the-middle-of-traffic longer || tell u1
	check longer-packets-among-the-domains longer_between || tell u1
	check the-daemon-is-killed twin_dies
	check the-same-stream-goes-on-through-linux moves u1 || tell u1
	twin_begins
	check another-twin twind_says '^twind: attached'
	check the-same-stream-goes-on-by-the-twin moves u1 || tell u1
}
[ $is_short ] || all
check the-outside-answers-beside-it outside_answers u1 || tell u1
check no-warnings no_warnings || tell
# When it starts, QEMU's vmxnet3 reads a list of no addresses at address 0.
check no-access-was-stopped no_dma_stopped "$([ $driver != vmxnet3 ] || echo 'reading address 0x0:')"
check frames-agree audit

# The driver domain is destroyed while the twin has the card.
check traffic-goes-on moves u1 || tell u1
check destroy destroyed dd u1 $([ $is_short ] || echo u2)
check no-node-stays wait_for 10 no_node 'vif/[0-9]'
# But page tables of the place where the twin was, for the next one there.
remember_less 128
check nothing-stays nothing_stays
check frames-agree-at-the-end audit
check assignable-remove xl pci-assignable-remove $nic
