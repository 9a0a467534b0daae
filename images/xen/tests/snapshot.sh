# snapshot.sh DRIVER MIB: a driver domain that dies becomes what it was when it had booted, and gets the NIC again. A guest's stream only waits.
driver=$1
mib=${2:-4}
few=$((mib < 16 ? mib : 16))
. /xen/driving.sh
. /xen/switching.sh
. /xen/supervising.sh
supervised_machine standby:$driver || exit

supervised 'crashes = 20' 'back-off-ms = 100' 'snapshot = true' 'compress = true'
check tandemd-starts-again daemon_starts || exit
config u1 "$(plug 3)"
check a-guest-starts boot u1 || exit
check address plugged_address u1 3
check it-is-noted daemon_said 1 'can be rolled back; that takes.* are packed into'
check it-starts-the-driver-domain daemon_said 1 'it is the way out'
check the-outside-answers outside_answers u1 60
check a-stream-without-an-end streams
status() { twinctl status net > /tmp/status; grep -q "$1" /tmp/status || { cat /tmp/status; return 1; }; }
check it-says-so wait_for 10 status 'looked after: up; it can be rolled back'

# back COUNT: so many were rolled back so far
back() { [ "$(grep -c 'recovered, .*rolled back' $daemon_log)" -ge $1 ] || { tail -n 5 $daemon_log; return 1; }; }
dd=$(xl domid dd)
is_same() { [ "$(xl domid dd)" = $dd ] && ! xl domid dd-standby; }
recovers a-panic 'has panicked' eval "tell_dd 'echo c > /proc/sysrq-trigger'"
check rolled-back back 1
check it-is-the-same-domain is_same
check xl-knows-whose-the-device-is eval "xl pci-list dd | grep '$nic'"
check and-nothing-is-left-of-it eval '! xl domid dd-remains'
recovers wedged 'taken no event' tell_dd job_wedge
check rolled-back-again back 2
for n in 3 4 5 6 7; do
	recovers series-$n 'has panicked' eval "tell_dd 'echo c > /proc/sysrq-trigger'"
	check series-$n-rolled-back back $n
done
check it-is-the-same-domain-still is_same
recovers a-restart 'is to be restarted' twinctl restart net
check a-restart-is-a-way-back back 8
check no-access-was-stopped no_dma_stopped
# A new daemon finds what can be rolled back.
check tandemd-is-killed daemon_ends
tell_dd 'echo c > /proc/sysrq-trigger'
ways=$(grep -c 'it is the way out' $daemon_log)
check the-next-tandemd daemon_starts
check brings-it-back daemon_said $((ways + 1)) 'it is the way out'
check and-the-same-stream-goes-on moves u1
check it-is-written-down daemon_said 9 'recovered, .*rolled back' 120
check frames-agree audit
# What is gone cannot become anything.
recovers destroyed 'was destroyed' xl destroy dd
check another-one-booted eval '! is_same'
check and-is-noted daemon_said 2 'can be rolled back; that takes'
dd=$(xl domid dd)
recovers the-new-one 'has panicked' eval "tell_dd 'echo c > /proc/sysrq-trigger'"
check the-new-one-is-rolled-back back 10
check and-is-the-same is_same
# What it has given up since is not in the way. It is told anew how much memory it is to have, and gives up as much again.
away() { xl debug-keys u; xl dmesg | grep "use: d$dd: " | tail -n 1 | grep ', [34][0-9][0-9][0-9] of them away'; }
check it-gets-less-memory xl mem-set dd 240
check which-it-gives-up wait_for 30 away
recovers with-less-memory 'has panicked' eval "tell_dd 'echo c > /proc/sysrq-trigger'"
check it-is-rolled-back-all-the-same back 11
check and-gives-it-up-again wait_for 30 away
check frames-agree-still audit
# What has changed otherwise may be in the way; then another one boots.
check consoles-end eval 'kill $(cat /run/xen/xenconsoled.pid) && wait_for 10 eval "! pidof xenconsoled"'
ways=$(grep -c 'it is the way out' $daemon_log)
check a-restart-in-the-way twinctl restart net
check it-is-said-why daemon_said 1 'is not rolled back: its port .* does not lead any more where it led'
check consoles-begin xenconsoled --log=guest --log-dir=$logs --pid-file=/run/xen/xenconsoled.pid
check another-one-comes daemon_said $((ways + 1)) 'it is the way out'
check and-the-stream-goes-on-with-it moves u1
check nothing-was-rolled-back eval '! back 12 && ! is_same'

check xl-was-not-needed eval "! grep 'xl is to' $daemon_log"
check the-operator-parks-it eval 'twinctl park net && gone dd 60'
ways=$(grep -c 'it is the way out' $daemon_log)
check the-operator-lets-it-come twinctl unpark net
check and-it-comes daemon_said $((ways + 1)) 'it is the way out'
check the-outside-answers-again outside_answers u1 60
in_guest u1 10 'killall tcptest'
check packets-go-on said 'net ok' u1 $((60 + few * 8)) "$keeps && nettest eth0 10.9.0.1 $few 64"
check streams-go-on said 'tcp ok' u1 $((60 + mib * 4)) "tcptest get 10.9.0.1 $mib"

# Another one waits, and each can be rolled back: they take turns.
check it-is-parked-once-more eval 'twinctl park net && gone dd 60'
check tandemd-ends-once-more daemon_ends
supervised 'crashes = 20' 'back-off-ms = 100' 'snapshot = true' 'standby = 1'
check tandemd-starts-with-both daemon_starts
noted=$(grep -c 'can be rolled back; that takes' $daemon_log)
check it-is-unparked twinctl unpark net
check both-are-noted daemon_said $((noted + 2)) 'can be rolled back; that takes' 240
check and-one-waits daemon_said 1 'waits to take its place'
check the-outside-is-there outside_answers u1 60
check a-stream-once-more streams
one=$(xl domid dd) other=$(xl domid dd-standby)
# turn COUNT DOMAIN: so many were rolled back to wait, and this one is the way out
turn() { wait_for 60 eval "[ \$(grep -c 'is what it was when it waited' $daemon_log) -ge $1 ]" && [ "$(xl domid dd)" = $2 ] && xl domid dd-standby; }
recovers turn-1 'has panicked' eval "tell_dd 'echo c > /proc/sysrq-trigger'"
check the-other-one-has-the-place turn 1 $other
recovers turn-2 'taken no event' tell_dd job_wedge
check the-first-one-has-it-again turn 2 $one
recovers turn-3 'is to be restarted' twinctl restart net
check and-the-other-one-once-more turn 3 $other
recovers turn-4 'was destroyed' xl destroy dd
check the-first-one-was-there eval '[ "$(xl domid dd)" = $one ]'
check a-third-one-is-noted daemon_said $((noted + 3)) 'can be rolled back; that takes' 240
check frames-agree-after-turns audit
in_guest u1 10 'killall tcptest'
check shut-down-by-the-operator eval 'twinctl park net && gone dd 60 && gone dd-standby 60 && gone dd-remains 60'
check destroy-the-guest eval 'xl destroy u1 && gone u1'
supervised_machine_ends
