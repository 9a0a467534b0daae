# way-out.sh DRIVER MIB: guests on the hypervisor's switch reach the outside through a driver domain, whose own interface there is
# the switch's way out: Linux in it bridges that with the NIC. Another driver domain takes its place, and they only wait.
driver=$1
mib=${2:-4}
# Of datagrams, and of streams at the same time: each must arrive, so many more of them say nothing new.
few=$((mib < 64 ? mib : 64))
. /xen/driving.sh
. /xen/switching.sh
take_nic
mkdir -p /etc/tandem
printf '[service.net]\ndriver_domain = "dd"\n' > /etc/tandem/tandemd.toml
refused() { ! tandemd --check 2> /tmp/refused && grep -q 'driver-domain' /tmp/refused; }
check a-wrong-configuration-is-refused-in-words refused
way_out dd
check tandemd-starts daemon_starts || exit
remember

config u1 "$(plug 3)"
config u2 'vcpus=2' "$(plug 4)"
drives() {
	local ways=$(grep -c 'the way out' $daemon_log)
	driving dd "pci=['$nic,permissive=1']" "$(plug 2)"
	boot dd || return 1
	in_guest dd 150 "bridge_switch $driver" || return 1
	wait_for 20 eval "[ \$(grep -c 'the way out' $daemon_log) -gt $ways ]"
}
check a-guest-starts boot u1 || exit
check address plugged_address u1 3
check a-driver-domain-drives-the-nic drives || { cat $daemon_log; exit; }
check another-guest-starts boot u2 || exit
check the-outside-answers outside_answers u1 20
check address-of-the-second in_guest u2 40 'job_address 4'
check the-driver-domain-answers reaches u1 2

check packets-to-and-from-outside said 'net ok' u1 $((60 + few * 8)) "$keeps && nettest eth0 10.9.0.1 $few 64"
check stream-to-outside said 'tcp ok' u2 $((60 + mib * 4)) "tcptest put 10.9.0.1 $mib"
check stream-from-outside said 'tcp ok' u2 $((60 + mib * 4)) "tcptest get 10.9.0.1 $mib"
in_guest u2 10 '(tcptest serve > /dev/null 2>&1 &); (nettest serve > /dev/null 2>&1 &)'
check packets-guest-to-guest said 'net ok' u1 $((60 + few * 8)) "nettest eth0 10.9.0.4 $few 64"
all_at_once() {
	in_guest u2 $((60 + few * 4)) "(tcptest get 10.9.0.1 $few; tcptest put 10.9.0.1 $few) > /tmp/streams &"
	streams_ok 2 u1 $((60 + few * 8)) "tcptest put 10.9.0.4 $few; tcptest get 10.9.0.1 $few" || return 1
	said '^2$' u2 $((60 + few * 8)) 'wait_for 60 grep -q "tcp .* put" /tmp/streams; grep -c "tcp ok" /tmp/streams'
}
check streams-at-the-same-time all_at_once
check frames-agree audit

# The driver domain dies in the middle of traffic. Its guests are told nothing.
check a-stream-without-an-end endless u1
check destroy-it-in-the-middle eval 'xl destroy dd && gone dd'
check the-guests-reach-each-other reaches u2 3
check a-new-driver-domain drives || { cat $daemon_log; exit; }
check the-same-stream-goes-on moves u1
in_guest u1 10 'killall tcptest'
check packets-go-on said 'net ok' u2 $((60 + few * 8)) "nettest eth0 10.9.0.1 $few 64"
check no-access-was-stopped no_dma_stopped

destroyed() { local d; for d in u1 u2 dd; do xl destroy $d && gone $d || return 1; done; }
check destroy destroyed
check no-node-stays wait_for 10 no_node 'vif/[0-9]'
check nothing-stays nothing_stays
check frames-agree-at-the-end audit
check assignable-remove xl pci-assignable-remove $nic
check nothing-was-wrong eval '! grep -E "not connected|tandemd:" $daemon_log'
cat $daemon_log > /dev/console
