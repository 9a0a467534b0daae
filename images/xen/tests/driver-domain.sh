# driver-domain.sh DRIVER MIB: two guests have their network from a driver domain that owns the NIC.
driver=$1
mib=${2:-4}
# Of datagrams, and of streams at the same time: each must arrive, so many more of them say nothing new.
few=$((mib < 64 ? mib : 64))
. /xen/driving.sh
take_nic
remember
check a-driver-domain-serves-a-network serve_network dd $nic $driver || exit
behind u1 dd 3
behind u2 dd 4 'vcpus=2'
check a-guest-starts boot u1 || exit
check another-starts boot u2 || exit
is_backend() { xl network-list u1 | grep -q "/local/domain/$(xl domid dd)/backend/vif/$(xl domid u1)/0"; }
check its-interface-is-served-by-the-driver-domain is_backend
address() { in_guest $1 30 "job_address $2" || in_guest dd 20 'tail -n 5 /var/log/xen/xen-hotplug.log; ls /sys/class/net/xenbr0/brif; false'; }
for g in u1 u2; do check $g-is-plugged-in plugged $g; done
check address address u1 3
check address-of-the-second address u2 4
check dom0-has-no-interface eval '[ "$(ls /sys/class/net)" = lo ]'

check packets-to-and-from-outside said 'net ok' u1 $((60 + few * 8)) "$keeps && nettest eth0 10.9.0.1 $few 64"
check packets-of-the-second said 'net ok' u2 $((60 + few * 8)) "nettest eth0 10.9.0.1 $few 64"
check stream-to-outside said 'tcp ok' u1 $((60 + mib * 4)) "tcptest put 10.9.0.1 $mib"
check stream-from-outside said 'tcp ok' u1 $((60 + mib * 4)) "tcptest get 10.9.0.1 $mib"
in_guest u2 10 '(tcptest serve > /dev/null 2>&1 &) ; mkdir -p /www; echo page of u2 > /www/index.html; httpd -h /www'
check stream-guest-to-guest said 'tcp ok' u1 $((60 + mib * 4)) "tcptest put 10.9.0.4 $mib"
check stream-back said 'tcp ok' u1 $((60 + mib * 4)) "tcptest get 10.9.0.4 $mib"
check page-from-outside said 'a page from outside' u1 20 'wget -q -O - http://10.9.0.1/'
check page-from-the-other-guest said 'page of u2' u1 20 'wget -q -O - http://10.9.0.4/'
all_at_once() {
	in_guest u2 $((60 + few * 4)) "(tcptest get 10.9.0.1 $few; tcptest put 10.9.0.1 $few) > /tmp/streams &"
	streams_ok 2 u1 $((60 + few * 8)) "tcptest put 10.9.0.4 $few; tcptest get 10.9.0.1 $few" || return 1
	said '^2$' u2 $((60 + few * 8)) 'wait_for 60 grep -q "tcp .* put" /tmp/streams; grep -c "tcp ok" /tmp/streams'
}
check streams-at-the-same-time all_at_once
no_errors() {
	in_guest $1 10 'cd /sys/class/net/eth0/statistics; for f in rx_errors tx_errors rx_crc_errors tx_dropped; do [ $(cat $f) = 0 ] || echo $f $(cat $f); done; dmesg | grep -iE "warn|bug:|oops:" || true' | tee /tmp/errors
	! grep -q . /tmp/errors
}
for d in u1 u2 dd; do check no-errors-in-$d no_errors $d; done
check no-access-was-stopped no_dma_stopped
# What the interrupts were, for who reads the log.
say "interrupts dd $(in_guest dd 10 'grep eth0 /proc/interrupts' | tr -s ' \n' ' ') frames $(in_guest dd 10 'cat /sys/class/net/eth0/statistics/[rt]x_packets' | tr '\n' ' ')"
say "interrupts dom0 $(grep pirq /proc/interrupts | tr -s ' ' | tr '\n' ';')"
check frames-agree audit

destroyed() { local d; for d in u1 u2 dd; do xl destroy $d && gone $d || return 1; done; }
check destroy destroyed
check dom0-frees-its-interrupts eval '! dmesg | grep "unmap irq failed"'
check no-node-stays no_node 'vif/[1-9]|^/local/domain/[1-9]|^/libxl/[1-9]'
check nothing-stays nothing_stays
check frames-agree-at-the-end audit
check assignable-remove xl pci-assignable-remove $nic
