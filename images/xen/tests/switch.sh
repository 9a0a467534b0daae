# switch.sh MIB: two guests whose interfaces the hypervisor's own switch serves, while tandemd plays the back end.
mib=${1:-8}
# Of datagrams, and of streams at the same time: each must arrive, so many more of them say nothing new.
few=$((mib < 64 ? mib : 64))
. /xen/driving.sh
. /xen/switching.sh

check tandemd-starts daemon_starts || exit
remember
shown() { xl list net | grep -q '^net .* 4 *1 *--p---'; }
check xl-shows-the-back-end shown
configured() { xl list -l net | grep -q '"name": "net"'; }
check with-its-configuration configured
# If somebody lets it run it waits for nothing.
waits() { xl unpause net && usleep 500000 && xl list net | grep -q -- ' -b---- ' && xl pause net; }
check it-does-nothing-when-it-runs waits
alone() { ! tandemd 2> /tmp/second && grep -q 'another tandemd runs' /tmp/second; }
check a-second-daemon-does-not-run alone
config s1 "$(plug 3)"
config s2 'vcpus=4' "$(plug 4)"
check a-guest-starts boot s1 || exit
check another-starts boot s2 || exit
listed() { xl network-list s1 | grep -q "00:16:3e:00:00:03 .* /local/domain/$(xl domid net)/backend/vif/$(xl domid s1)/0"; }
check network-list listed
check address plugged_address s1 3
check address-of-the-second plugged_address s2 4
check ping reaches s1 4
check ping-back reaches s2 3

in_guest s2 10 '(tcptest serve > /dev/null 2>&1 &); (nettest serve > /dev/null 2>&1 &)'
check datagrams said 'net ok' s1 $((60 + few * 8)) "$keeps && nettest eth0 10.9.0.4 $few 64"
counted() { [ "$(tandemd --list | awk '$1 == "s1" { print $4 }')" = "$(in_guest s1 10 'cat /sys/class/net/eth0/statistics/tx_packets')" ]; }
check what-was-sent-is-counted wait_for 20 counted
check stream said 'tcp ok' s1 $((60 + mib * 4)) "tcptest put 10.9.0.4 $mib"
check stream-back said 'tcp ok' s1 $((60 + mib * 4)) "tcptest get 10.9.0.4 $mib"
# A guest has a queue for each of its processors, and packets of connections go by all of them: here that many connections are refused.
tx_queues() { in_guest $1 10 'ls -d /sys/class/net/eth0/queues/tx-* | wc -l' | grep '^[0-9]*.$' | tr -d '\r'; }
same a-queue-for-one-vcpu 1 "$(tx_queues s1)"
same queues-for-four-vcpus 4 "$(tx_queues s2)"
# by_queue: interrupts of each receive queue of s2 so far
by_queue() { in_guest s2 20 "sed -n 's/^ *[0-9]*:\(.*\) xen-dyn.*-q[0-9]*-rx.*/\1/p' /proc/interrupts" | grep '^[ 0-9]*.$' | awk '{ sum = 0; for (n = 1; n <= NF; n++) sum += $n; print sum }'; }
all_queues() {
	local n before=($(by_queue)) after
	in_guest s1 60 'for port in $(seq 100 163); do nc 10.9.0.4 $port < /dev/null > /dev/null 2>&1; done; true'
	after=($(by_queue))
	echo "${before[@]} interrupts before, ${after[@]} after"
	[ ${#after[@]} = 4 ] || return 1
	for n in ${!after[@]}; do [ ${after[n]} -gt ${before[n]} ] || return 1; done
}
check connections-go-by-all-queues all_queues
no_errors() {
	in_guest $1 10 'cd /sys/class/net/eth0/statistics; for f in rx_errors tx_errors rx_crc_errors tx_dropped; do [ $(cat $f) = 0 ] || echo $f $(cat $f); done; dmesg | grep -iE "warn|bug:|oops:" || true' | tee /tmp/errors
	! grep -q . /tmp/errors
}

# Streams go on while the daemon is killed, and when it is back; it knows what is plugged in, and a new interface can come.
check a-stream-without-an-end endless s1 10.9.0.4
killed() { kill -9 $(cat /tmp/tandemd.pid) && wait_for 5 eval '! kill -0 $(cat /tmp/tandemd.pid)' && moves s1; }
check it-goes-on-without-the-daemon killed
again() { daemon_starts && [ "$(xl domid net)" = "$1" ] && moves s1; }
check the-daemon-is-back-with-the-same-domain again $(xl domid net)

check network-attach xl network-attach s2 mac=00:16:3e:00:00:05 backend=net rate=10Mb/s
second() { in_guest s2 40 'wait_for 10 test -e /sys/class/net/eth1 && ifconfig eth1 10.9.1.5 netmask 255.255.255.0 up'; }
check its-interface second
limited() { grep -q 'connected, 00:16:3e:00:00:05, rate ' $daemon_log; }
check its-rate-is-told limited
detached() { xl network-detach s2 1 && in_guest s2 20 'wait_for 10 test ! -e /sys/class/net/eth1' && [ "$(xl network-list s2 | wc -l)" = 2 ]; }
check network-detach detached
check attach-again xl network-attach s2 mac=00:16:3e:00:00:06 backend=net
check its-interface-again second
# The front end goes and comes, as when one kernel starts another.
reloaded() { in_guest s2 60 'cd /sys/bus/xen/drivers/vif && echo vif-0 > unbind && [ ! -e /sys/class/net/eth0 ] && echo vif-0 > bind && wait_for 10 test -e /sys/class/net/eth0' && plugged_address s2 4 && reaches s2 3; }
check the-front-end-goes-and-comes reloaded
check no-errors-at-the-interface no_errors s1

# One goes to a file and comes back: another domain, a new connection. Its stream's other end had gone, so that has ended.
in_guest s2 10 '(tcptest serve > /dev/null 2>&1 &)'
saved() { timeout 120 xl save s1 /tmp/s1.save && gone s1 && timeout 120 xl restore /tmp/s1.save && rm /tmp/s1.save && reaches s1 4; }
log_of() { [ $logs/guest-$1--incoming.log -nt $logs/guest-$1.log ] && echo $logs/guest-$1--incoming.log || echo $logs/guest-$1.log; }
check save-and-restore saved
moved() { local old=$(xl domid s1); timeout 240 xl migrate -s '' s1 'xl migrate-receive' && [ "$(xl domid s1)" != $old ] && reaches s1 4; }
check move-it-live moved
check stream-after-that said 'tcp ok' s1 $((60 + mib * 4)) "killall tcptest; tcptest put 10.9.0.4 $mib"
check frames-agree audit

check traffic-again endless s1 10.9.0.4
check destroyed-in-traffic eval 'xl destroy s1 && gone s1'
other_lives() { said '^here$' s2 20 'echo here' && [ "$(xenstore-list /local/domain/$(xl domid net)/backend/vif)" = "$(xl domid s2)" ]; }
check the-other-lives other_lives
check destroy eval 'xl destroy s2 && gone s2'
check no-node-stays wait_for 10 no_node 'vif/[0-9]'
check nothing-stays nothing_stays
check frames-agree-at-the-end audit
# It is the last to go, and comes again for the next guests.
ended() { local old=$(xl domid net); timeout 60 xl shutdown -w net && wait_for 30 eval '[ -n "$(xl domid net)" ] && [ "$(xl domid net)" != '$old' ]'; }
check shutdown ended
# Who ends all domains waits for names, so it does not come again before that is over. Here nobody but this says so.
printf '#!/bin/bash\n[ "$1" != show ] || echo deactivating\n' > /usr/bin/systemctl
chmod 755 /usr/bin/systemctl
check shutdown-of-all eval 'timeout 60 xl shutdown -w net; gone net'
usleep 3000000
check it-does-not-come-meanwhile eval '! xl domid net && tail -n 1 $daemon_log | grep "when that is over"'
rm /usr/bin/systemctl
# Guests are started when it is over, as soon as it is there: no script tries that again.
check who-starts-guests-waits-for-it tandemd --wait
check and-they-start eval 'boot s1 && xl destroy s1 && gone s1'
# It says where a configuration would be, of which there is none here, and complains of nothing.
usual='^tandemd: there is no file \*\.toml in /etc/tandem: '
check it-says-that-nobody-configured-it grep -q "$usual" $daemon_log
check nothing-was-wrong eval '! grep -v "$usual" $daemon_log | grep -E "not connected|tandemd:"'
cat $daemon_log > /dev/console
