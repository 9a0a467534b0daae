# recovery.sh DRIVER MIB: a driver domain that dies, in whichever way, is started again by tandemd. A guest's stream only waits for it.
driver=$1
mib=${2:-4}
few=$((mib < 16 ? mib : 16))
. /xen/driving.sh
. /xen/switching.sh
. /xen/supervising.sh
supervised_machine tells_memory+pci+bridge_switch:$driver || exit
refused() { ! tandemd --check 2> /tmp/refused && grep -q "$1" /tmp/refused || { cat /tmp/refused; return 1; }; }
supervised 'crash = 3'
check an-unknown-key-is-refused refused 'unknown field `crash`'
check a-file-that-is-not-there-is-refused eval '! tandemd --config /nowhere.toml --check 2> /tmp/refused && grep -q /nowhere.toml /tmp/refused'
supervised
mv /tmp/dd.cfg /tmp/dd.kept
check a-configuration-that-is-not-there-is-refused refused '/tmp/dd.cfg'
mv /tmp/dd.kept /tmp/dd.cfg
printf '[service.lab]\ndriver-domain = "dd"\n[service.lab.supervise]\nconfig = "/tmp/dd.cfg"\n' >> /etc/tandem/tandemd.toml
check a-device-that-is-claimed-twice-is-refused refused "0000:${nic#0000:} is claimed twice"
supervised 'crashes = 20' 'back-off-ms = 100' 'assign = true'
check the-device-is-domain-0s-again xl pci-assignable-remove -r $nic
check tandemd-starts-again daemon_starts || exit
config u1 "$(plug 3)"
check it-starts-the-driver-domain daemon_said 1 'it is the way out'
check and-took-its-device-from-domain-0 daemon_said 1 "0000:${nic#0000:} is taken from domain 0" 1
check a-guest-starts boot u1 || exit
check address plugged_address u1 3
check the-outside-answers outside_answers u1 30
check a-stream-without-an-end streams

recovers a-panic 'has panicked' eval "tell_dd 'echo c > /proc/sysrq-trigger'"
recovers out-of-memory 'was out of memory' tell_dd 'echo 1 > /proc/sys/vm/panic_on_oom; tail /dev/zero'
recovers a-destruction 'was destroyed' xl destroy dd
recovers wedged 'taken no event' tell_dd job_wedge
check no-access-was-stopped no_dma_stopped
counts() { tandemd --list | tee /tmp/counts | grep -q 'destroyed 1, out-of-memory 1, panicked 1, recovered 5, wedged 1'; }
check nothing-else-was-noticed eval 'counts || { grep "^net: dd" /tmp/counts; false; }'
# shown WORDS: a line of a screen of `twinctl top` has them
shown() { grep -qE "$1" /tmp/screen || { cat /tmp/screen; return 1; }; }
check a-screen eval 'twinctl top net --count 1 > /tmp/screen'
check has-restarts-by-their-causes shown 'restarts: 5 recovered, 4 ended \(destroyed 1, out-of-memory 1, panicked 1, wedged 1\)'
check and-outages shown 'outages: the last [1-9][0-9]* ms, all [1-9][0-9]* ms'
check and-the-last-recovery shown 'last wedged: noticed [0-9]+ ms, .*first packet in'

# An operator's own orders.
check the-operator-parks-it eval 'twinctl park net && gone dd 60'
check and-it-is-parked wait_for 10 eval 'twinctl status net | grep -q "looked after: parked: the operator wants it"'
check an-order-for-nobody-is-refused refuses 'no service lab' restart lab
ways=$(grep -c 'it is the way out' $daemon_log)
check the-operator-lets-it-come twinctl unpark net
check and-it-comes daemon_said $((ways + 1)) 'it is the way out'
check and-once-more-is-refused refuses 'not parked: it is up' unpark net
recovers a-restart 'is to be restarted' twinctl restart net
echo 'crash = 3' >> /etc/tandem/tandemd.toml
check a-wrong-configuration-is-not-taken-up refuses 'stays as it was' reload
mv /etc/tandem/tandemd.toml /tmp/tandemd.kept
check nor-is-one-that-is-gone refuses 'stays as it was' reload
mv /tmp/tandemd.kept /etc/tandem/tandemd.toml
check and-the-old-one-stays moves u1
supervised 'crashes = 20' 'back-off-ms = 50'
served=$(grep -c ': served' $daemon_log)
check a-right-one-is eval 'twinctl reload && daemon_said $((served + 1)) ": served" 20'
check and-the-same-stream-goes-on moves u1

# Before it fails. It has been of use for a minute by now, or is soon.
looked_after_by() { supervised "$@" && twinctl reload && wait_for 120 eval 'twinctl status net | grep -q "looked after: up"'; }
recovers old-age 'it has been there for' looked_after_by 'crashes = 1' 'renew-s = 60'
check its-memory-is-looked-at looked_after_by 'crashes = 1' 'least-free-kib = 80000' 'least-free-s = 5'
planned() { tandemd --list | tee /tmp/counts | grep -q 'aged [1-9]'; }
check that-was-counted eval 'planned || { grep "^net: dd" /tmp/counts; false; }'
check and-it-says-what-it-has eval 'twinctl status net | grep -E "of use for [0-9]+ s; [0-9]+ KiB of memory left"'
supervised 'crashes = 20' 'back-off-ms = 50'
served=$(grep -c ': served' $daemon_log)
check the-usual-configuration eval 'twinctl reload && daemon_said $((served + 1)) ": served" 20'

# One that dies whenever it sees its card: after so many deaths in a row it rests.
supervised 'crashes = 3' 'back-off-ms = 50'
served=$(grep -c ': served' $daemon_log)
check fewer-deaths-are-borne eval 'twinctl reload && daemon_said $((served + 1)) ": served" 20'
cp /tmp/dd.cfg /tmp/dd.kept
sed -i 's/tandem.do=[^ "]*/tandem.do=dies_of_nic/' /tmp/dd.cfg
check it-dies-again-and-again eval "tell_dd 'echo c > /proc/sysrq-trigger'"
check and-is-parked-in-the-end daemon_said 1 'parked: it failed 4 times within 600 s' 200
check all-of-it-is-one-outage daemon_said 1 'given up, panicked: .*again.*again.*again.*parked' 10
check it-is-gone gone dd 60
usleep 2000000
check and-nobody-comes eval '! xl domid dd'
check it-is-said-why eval 'twinctl status net | grep "parked: it failed 4 times within 600 s"'
check its-device-stays-put-aside eval "xl pci-assignable-list | grep '$nic'"
# What a front end can be told of it is that nobody answers.
check a-guest-gets-an-error said 'FAIL No route to host' u1 120 'arp -d 10.9.0.1; tcptest put 10.9.0.1 1'
mv /tmp/dd.kept /tmp/dd.cfg
ways=$(grep -c 'it is the way out' $daemon_log)
check the-operator-lets-it-come-again twinctl unpark net
check and-it-comes-again daemon_said $((ways + 1)) 'it is the way out'
check and-the-same-stream-goes-on-after-that moves u1
# The deaths of then are forgiven.
recovers once-more 'has panicked' eval "tell_dd 'echo c > /proc/sysrq-trigger'"
supervised 'crashes = 20' 'back-off-ms = 50'
served=$(grep -c ': served' $daemon_log)
check more-deaths-are-borne eval 'twinctl reload && daemon_said $((served + 1)) ": served" 20'
in_guest u1 10 'killall tcptest'
check tandemd-is-killed daemon_ends
check destroyed-without-tandemd eval 'xl destroy dd && gone dd'
ways=$(grep -c 'it is the way out' $daemon_log)
check the-next-tandemd daemon_starts
check starts-what-it-misses daemon_said $((ways + 1)) 'it is the way out'
# The interface is there a moment before it is in the bridge, and what is lost then nobody sends again.
check the-outside-answers-again outside_answers u1 30
check packets-go-on said 'net ok' u1 $((60 + few * 8)) "$keeps && nettest eth0 10.9.0.1 $few 64"
check streams-go-on said 'tcp ok' u1 $((60 + mib * 4)) "tcptest get 10.9.0.1 $mib"
check shut-down-by-the-operator eval 'xl shutdown dd && gone dd 60'
check it-says-so daemon_said 1 'it was shut down'
usleep 2000000
check and-leaves-it-so eval '! xl domid dd'
check tandemd-is-killed-then daemon_ends
check the-next-one daemon_starts
usleep 2000000
check leaves-it-so-too eval '! xl domid dd'
# The next start of the machine, by what tandemd knows of it.
check tandemd-ends-with-the-machine daemon_ends
check the-machine-starts-anew sed -i 's/^boot = .*/boot = "another"/' /var/lib/tandem/net.toml
ways=$(grep -c 'it is the way out' $daemon_log)
check and-tandemd-with-it daemon_starts
check and-dd-with-both daemon_said $((ways + 1)) 'it is the way out'
# It is shut down with all others, says who ends them, and comes again when that is over.
printf '#!/bin/bash\n[ "$1" != show ] || echo deactivating\n' > /usr/bin/systemctl
chmod 755 /usr/bin/systemctl
check shut-down-with-all-others eval 'xl shutdown dd && gone dd 60'
check which-is-said daemon_said 1 'was shut down with all other domains'
usleep 2000000
check and-it-stays-off-meanwhile eval '! xl domid dd'
ways=$(grep -c 'it is the way out' $daemon_log)
rm /usr/bin/systemctl
check and-it-comes-afterwards daemon_said $((ways + 1)) 'it is the way out'
check shut-down-once-more eval 'xl shutdown dd && gone dd 60'
check destroy-the-guest eval 'xl destroy u1 && gone u1'
supervised_machine_ends
