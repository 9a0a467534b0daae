# standby.sh DRIVER MIB: a driver domain that has booted waits for the NIC, and takes the place of the one that dies. A guest's stream only waits.
driver=$1
mib=${2:-4}
few=$((mib < 16 ? mib : 16))
. /xen/driving.sh
. /xen/switching.sh
. /xen/supervising.sh
supervised_machine standby:$driver || exit

# What concerns the driver domain alone keeps nobody else from being served.
# Elsewhere the hypervisor answers.
supervised 'crashes = 20' 'back-off-ms = 100' 'standby = 1' 'pci-answers = "back-end"'
mv /tmp/dd.cfg /tmp/dd.kept
check tandemd-starts-without-its-configuration daemon_starts || exit
config u1 "$(plug 3)"
check a-guest-starts boot u1 || exit
check address plugged_address u1 3
status() { twinctl status net > /tmp/status; grep -q "$1" /tmp/status || { cat /tmp/status; return 1; }; }
check it-is-parked-and-says-why wait_for 10 status 'looked after: parked: .*/tmp/dd.cfg'
check and-says-it-again-when-asked refuses /tmp/dd.cfg unpark net
# What a front end can be told of it is that nobody answers.
check a-guest-gets-an-error said 'FAIL No route to host' u1 60 'tcptest put 10.9.0.1 1'
mv /tmp/dd.kept /tmp/dd.cfg
check the-configuration-is-there-again twinctl unpark net
check it-starts-the-driver-domain daemon_said 1 'it is the way out'
check the-outside-answers outside_answers u1 60
check a-stream-without-an-end streams

# waits COUNT: so many have booted and waited so far
waits() { daemon_said $1 'waits to take its place' 240; }
# outages WORDS: of recoveries with these steps, in ms
outages() { sed -n "s/.*recovered, .*$1.*first packet in \\([0-9]*\\) ms.*/\\1/p" $daemon_log; }
check another-one-waits waits 1
check in-its-name eval 'xl domid dd-standby'
recovers a-panic 'has panicked' eval "tell_dd 'echo c > /proc/sysrq-trigger'"
check handed-over daemon_said 1 'recovered, panicked: .*handed over .*link .*first packet in'
check it-was-told-of-its-link eval '! grep "standby FAIL" $logs/*'
# What was done without xl is as xl would have left it.
check xl-knows-whose-the-device-is eval "xl pci-list dd | grep '$nic'"
check and-that-nobody-else-gets-it eval "! xl pci-assignable-list | grep '$nic'"
check and-nothing-is-left-of-the-old-one gone dd-remains 60
check the-next-one-waits waits 2
recovers wedged 'taken no event' tell_dd job_wedge
check handed-over-again daemon_said 1 'recovered, wedged: .*handed over .*first packet in'
check no-access-was-stopped no_dma_stopped
check the-third-waits waits 3
# The toolstack takes the device from one that runs. That is noticed before it is gone.
recovers a-destruction 'was destroyed' xl destroy dd
check while-xl-was-at-it daemon_said 1 'recovered, destroyed: quarantined .*handed over .*first packet in'
check the-fourth-waits waits 4
# A new daemon finds it, and uses it.
check tandemd-is-killed daemon_ends
check destroyed-without-tandemd eval 'xl destroy dd && gone dd'
ways=$(grep -c 'it is the way out' $daemon_log)
check the-next-tandemd daemon_starts
check hands-over daemon_said $((ways + 1)) 'it is the way out'
check and-the-same-stream-goes-on moves u1
check it-is-written-down daemon_said 1 'recovered, started: .*handed over .*first packet in' 120
# Without one that could take the place all of it has to be started.
check the-fifth-waits waits 5
check it-is-paused xl pause dd-standby
recovers without 'has panicked' eval "tell_dd 'echo c > /proc/sysrq-trigger'"
with=$(outages 'noticed .*handed over' | sort -n | head -n 1)
without=$(outages 'noticed .*created' | tail -n 1)
echo "outage with one that waits $with ms, without $without ms" > /dev/console
check it-is-quicker eval '[ $with -lt $without ] || { echo $with and $without ms; false; }'

check xl-was-not-needed eval "! grep 'xl is to' $daemon_log"
check the-operator-parks-it eval 'twinctl park net && gone dd 60'
check and-nobody-waits gone dd-standby 60
# Somebody else may have that name.
config dd-standby
check one-that-is-only-called-so boot dd-standby
check it-is-said-that-it-is-in-the-way daemon_said 1 'is called dd-standby, and was not made by tandemd' 20
usleep 3000000
check and-it-lives said '^here$' dd-standby 20 'echo here'
check it-is-destroyed eval 'xl destroy dd-standby && gone dd-standby'
check a-guest-gets-an-error-again said 'FAIL No route to host' u1 120 'killall tcptest; ifconfig eth0 down; ifconfig eth0 10.9.0.3 netmask 255.255.255.0 up; tcptest put 10.9.0.1 1'
ways=$(grep -c 'it is the way out' $daemon_log)
check the-operator-lets-it-come twinctl unpark net
check and-it-comes daemon_said $((ways + 1)) 'it is the way out'
check the-outside-answers-again outside_answers u1 60
check packets-go-on said 'net ok' u1 $((60 + few * 8)) "$keeps && nettest eth0 10.9.0.1 $few 64"
check streams-go-on said 'tcp ok' u1 $((60 + mib * 4)) "tcptest get 10.9.0.1 $mib"
# The configuration says nothing of it any more.
check one-waits-again wait_for 240 xl domid dd-standby
cp /etc/tandem/tandemd.toml /tmp/tandemd.kept
way_out dd
check nobody-looks-after-it twinctl reload
check so-nobody-waits eval 'daemon_said 1 "of no use any more" 60 && gone dd-standby 60'
check and-the-driver-domain-goes-on outside_answers u1 60
mv /tmp/tandemd.kept /etc/tandem/tandemd.toml
check it-is-looked-after-again eval "twinctl reload && wait_for 60 status 'looked after: up'"
check shut-down-by-the-operator eval 'twinctl park net && gone dd 60 && gone dd-standby 60'
check destroy-the-guest eval 'xl destroy u1 && gone u1'
supervised_machine_ends
