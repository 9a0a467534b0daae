# recovery-twin.sh DRIVER MIB: the way out is a twin of the driver domain's driver. The domain panics, and stops taking interrupts; twind is
# killed: each time the twin is the way out again, and a guest's stream only waits.
driver=$1
. /xen/driving.sh
. /xen/switching.sh
. /xen/supervising.sh
# Nobody but twins has the CPUs that come beside the first.
supervised_machine pci+bridge_switch:$driver+twin_kept 'vcpus=1' 'maxvcpus=4' || exit
supervised 'crashes = 20' 'back-off-ms = 100' 'twin = true'
check tandemd-starts-again daemon_starts || exit
config u1 "$(plug 3)"
check the-driver-domain-comes daemon_said 1 'it is the way out'
check a-guest-starts boot u1 || exit
check address plugged_address u1 3
by() { tandemd --list | grep "way out: dd by its $1"; }
check the-way-out-is-the-twin wait_for 120 by card || { in_guest dd 10 'cat /tmp/twind; dmesg | tail -n 4'; exit; }
check the-outside-answers outside_answers u1 30
check a-stream-without-an-end streams

recovers a-panic 'has panicked' eval "tell_dd 'echo c > /proc/sysrq-trigger'"
check the-twin-is-back-after-the-panic by card
recovers wedged 'taken no event' tell_dd job_wedge
check the-twin-is-back-after-that by card
check each-time-it-was-the-twin eval '[ $(grep -c "recovered, .* card [0-9]* ms" $daemon_log) -ge 3 ]'
twind_dies() { in_guest dd 20 'kill -9 $(cat /tmp/twind.pid)'; wait_for 20 by interface; }
check twind-is-killed twind_dies
check another-gives-it-a-twin wait_for 120 by card
check the-same-stream-goes-on moves u1
counts() { tandemd --list | tee /tmp/counts | grep -q 'panicked 1, recovered 3, wedged 1'; }
check nothing-else-was-noticed eval 'counts || { grep "^net: dd" /tmp/counts; false; }'
check packets-to-and-from-outside said 'net ok' u1 90 "$keeps && killall tcptest && nettest eth0 10.9.0.1 4 64"
check stream-from-outside said 'tcp ok' u1 120 "tcptest get 10.9.0.1 ${2:-4}"
check no-access-was-stopped no_dma_stopped
check the-operator-shuts-it-down eval 'xl shutdown dd && gone dd 60'
check destroy-the-guest eval 'xl destroy u1 && gone u1'
# But page tables of the place where the twin was, for the next one there.
remember_less 128
supervised_machine_ends
