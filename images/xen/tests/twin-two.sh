# twin-two.sh DRIVER OTHER MIB [apart]: two network cards of different kinds have twins at once, each the way out of a switch of its own.
# One driver domain has both, or, with `apart`, each has one.
drivers=($1 $2)
mib=${3:-2}
apart=${4:+yes}
. /xen/driving.sh
. /xen/switching.sh
. /xen/twinning.sh
modprobe xen-pciback
nics=($(devices class 0x020000))
for nic in ${nics[@]}; do check assignable-add xl pci-assignable-add $nic; done
mkdir -p /etc/tandem
dds=(dd dd)
[ ! $apart ] || dds=(dd dd2)
printf '[service.net]\ndriver-domain = "%s"\n[service.net2]\ndriver-domain = "%s"\n' ${dds[@]} > /etc/tandem/tandemd.toml
check tandemd-starts daemon_starts || exit
check both-services-are-there wait_for 40 eval "[ \$(grep -c ': served' $daemon_log) = 2 ]"
remember

# vif LAST SERVICE
vif() { echo "'mac=00:16:3e:00:00:0$1,backend=$2'"; }
config u1 "vif=[$(vif 3 net)]"
config u2 "vif=[$(vif 4 net2)]"
# bridged DOMAIN NUMBER DRIVER CARD UPLINK: bridges a card with the domain's own interface, which comes after it
bridged() {
	in_guest $1 90 "modprobe bridge; modprobe $3; wait_for 20 test -e /sys/class/net/$4 && modprobe xen-netfront && wait_for 20 test -e /sys/class/net/$5 && brctl addbr br$2 && brctl addif br$2 $4 && brctl addif br$2 $5 && ip link set $4 up && ip link set $5 up && ip link set br$2 up && ip addr add 10.9.0.2/24 dev br$2 && wait_for 20 ping -I br$2 -c 1 -W 1 10.9.0.1"
}
both_drive() {
	if [ $apart ]; then
		driving dd "pci=['${nics[0]},permissive=1']" "vif=[$(vif 2 net)]" 'vcpus=1' 'maxvcpus=4'
		driving dd2 "pci=['${nics[1]},permissive=1']" "vif=[$(vif 5 net2)]" 'vcpus=1' 'maxvcpus=4'
		boot dd && boot dd2 && bridged dd 0 ${drivers[0]} eth0 eth1 && bridged dd2 0 ${drivers[1]} eth0 eth1
	else
		driving dd "pci=['${nics[0]},permissive=1','${nics[1]},permissive=1']" "vif=[$(vif 2 net),$(vif 5 net2)]" 'vcpus=1' 'maxvcpus=4'
		boot dd && in_guest dd 90 "modprobe ${drivers[0]} && wait_for 20 test -e /sys/class/net/eth0 && modprobe ${drivers[1]} && wait_for 20 test -e /sys/class/net/eth1" || return 1
		bridged dd 0 ${drivers[0]} eth0 eth2 && in_guest dd 10 'ip addr del 10.9.0.2/24 dev br0' && bridged dd 1 ${drivers[1]} eth1 eth3
	fi
}
check driver-domains-drive-both both_drive || { cat $daemon_log; exit; }
check both-are-ways-out wait_for 20 eval "[ \$(grep -c 'the way out' $daemon_log) = 2 ]"
check guests-start eval 'boot u1 && boot u2' || exit
check addresses eval 'plugged_address u1 3 && plugged_address u2 4'
outside() { local u; for u in u1 u2; do in_guest $u 60 'wait_for 30 ping -c 1 -W 1 10.9.0.1' || return 1; done; }
check the-outside-answers-both outside

# has_twin DOMAIN CARD: the twin has it
has_twin() { said "^$2 .*: twin-mirror, twin" $1 60 "twinctl status $2"; }
# twin DOMAIN CARD VIF: gives the card to a twin; a daemon has all of a domain's
twin() {
	in_guest $1 60 "[ -e /dev/tandem ] || job_twin_module; [ -e /run/tandem/twind.sock ] || job_twind --interface $2 --vif $3"
	in_guest $1 120 "wait_for 10 test -e /run/tandem/twind.sock; twinctl status $2 | grep -q '^$2 ' || twinctl load $2 --vif $3" && wait_for 120 has_twin $1 $2 && return
	in_guest $1 10 'cat /tmp/twind; dmesg | tail -n 4'
	return 1
}
check the-first-has-a-twin twin ${dds[0]} eth0 0 || exit
if [ $apart ]; then second=(dd2 eth0 0); else second=(dd eth1 1); fi
check the-second-has-a-twin twin ${second[@]} || exit
check the-outside-answers-both-by-twins outside
# needs_mib DOMAIN MIB: its daemon has never had more memory than that. A driver domain is small, and has nothing to swap to.
needs_mib() {
	local kib=$(in_guest $1 10 'sed -n "s/^VmHWM:[^0-9]*\([0-9]*\) kB/\1/p" /proc/$(cat /tmp/twind.pid)/status')
	echo "$kib KiB"
	[ "$kib" -gt 0 ] && [ "$kib" -lt $(($2 * 1024)) ]
}
check the-daemon-needs-little-memory needs_mib ${dds[0]} 80
streams() {
	in_guest u2 $((60 + mib * 8)) "(tcptest put 10.9.0.1 $mib; tcptest get 10.9.0.1 $mib) > /tmp/streams &"
	said 'tcp ok' u1 $((60 + mib * 8)) "tcptest get 10.9.0.1 $mib" && said 'tcp ok' u1 $((60 + mib * 8)) "tcptest put 10.9.0.1 $mib" || return 1
	said '^2$' u2 $((60 + mib * 8)) 'wait_for 60 grep -q "tcp .* get" /tmp/streams; grep -c "tcp ok" /tmp/streams'
}
check streams-both-ways-through-both-at-once streams
packets() {
	in_guest u2 $((60 + mib * 8)) "nettest eth0 10.9.0.1 $mib 64 > /tmp/packets &"
	said 'net ok' u1 $((60 + mib * 8)) "nettest eth0 10.9.0.1 $mib 64" || return 1
	said 'net ok' u2 $((60 + mib * 8)) 'wait_for 60 grep -q "net " /tmp/packets; cat /tmp/packets'
}
check packets-through-both-at-once packets
# One of the cards goes; the other does not notice.
check a-stream-without-an-end endless u1
check the-other-card-goes-down in_guest ${second[0]} 20 "ip link set ${second[1]} down"
check the-stream-does-not-notice moves u1
check the-other-card-comes-up in_guest ${second[0]} 20 "ip link set ${second[1]} up"
check its-twin-has-it-again wait_for 60 has_twin ${second[0]} ${second[1]}
check a-stream-through-it endless u2
check no-access-was-stopped no_dma_stopped
# Each service has its own way.
ways() { twinctl status | grep -c ': twin-mirror, by'; }
same both-are-ways-by-twins 2 "$(ways)"
other_way() { twinctl mode net2 vm && twinctl status net | grep '^net: twin-mirror' && twinctl status net2 | grep '^net2: vm'; }
check one-of-them-goes-the-other-way other_way
check the-streams-do-not-notice eval 'moves u1 && moves u2'
check frames-agree audit
destroyed() { local d; for d in $(echo ${dds[@]} | tr ' ' '\n' | uniq) u1 u2; do xl destroy $d && gone $d || return 1; done; }
check destroy destroyed
check no-node-stays wait_for 10 no_node 'vif/[0-9]'
# But page tables of the places where the twins were, for the next ones there.
remember_less 256
check nothing-stays nothing_stays
check frames-agree-at-the-end audit
