# routing.sh DRIVER MIB: a driver domain that routes, and forbids one guest the outside, is the switch's way out. It dies; the next one routes, too, and a
# guest's stream goes on.
driver=$1
mib=${2:-4}
few=$((mib < 16 ? mib : 16))
. /xen/driving.sh
. /xen/switching.sh
. /xen/supervising.sh
supervised_machine pci+routes:$driver:3:4 || exit
supervised 'crashes = 20' 'back-off-ms = 50'
check tandemd-starts-again daemon_starts || exit
config u1 "$(plug 3)"
config u2 "$(plug 4)"
check it-starts-the-driver-domain daemon_said 1 'it is the way out'
check a-guest-starts boot u1 || exit
check address plugged_address u1 3
check another-guest-starts boot u2 || exit
check address-of-the-second plugged_address u2 4
check the-outside-answers outside_answers u1 60
# Two hops: it is routed, and not bridged. One that only bridges would send it with the guest's own hardware address.
hops() { said '^hops$' u1 30 'ping -t 1 -c 1 -W 2 10.9.0.1 | grep -q "0 packets received" && ping -t 2 -c 2 -W 2 10.9.0.1 | grep -q "ttl=" && echo hops'; }
check it-routes hops
forbidden() { said '^forbidden$' $1 60 'ping -c 1 -W 2 10.9.0.2 > /dev/null; ! ping -c 3 -W 1 10.9.0.1 && echo forbidden'; }
check guests-reach-each-other reaches u2 3
check packets-to-and-from-outside said 'net ok' u1 $((60 + few * 8)) "$keeps && nettest eth0 10.9.0.1 $few 64"
check stream-to-outside said 'tcp ok' u1 $((60 + mib * 4)) "tcptest put 10.9.0.1 $mib"
check stream-from-outside said 'tcp ok' u1 $((60 + mib * 4)) "tcptest get 10.9.0.1 $mib"
check a-filter-is-set tell_dd '/bin/ip rule add from 10.9.0.4 prohibit'
check one-guest-is-forbidden-the-outside wait_for 60 forbidden u2
check and-the-other-one-is-not outside_answers u1 20
check a-stream-without-an-end streams
recovers a-panic 'has panicked' eval "tell_dd 'echo c > /proc/sysrq-trigger'"
check it-routes-again hops
check and-what-was-set-by-hand-is-gone outside_answers u2 60
recovers a-destruction 'was destroyed' xl destroy dd
in_guest u1 10 'killall tcptest'
check packets-go-on said 'net ok' u1 $((60 + few * 8)) "nettest eth0 10.9.0.1 $few 64"
check no-access-was-stopped no_dma_stopped
destroyed() { local d; for d in u1 u2; do xl destroy $d && gone $d || return 1; done; }
check destroy-the-guests destroyed
check shut-down-by-the-operator eval 'xl shutdown dd && gone dd 60'
supervised_machine_ends
