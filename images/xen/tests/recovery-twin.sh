# recovery-twin.sh DRIVER MIB: the way out is a twin of the driver domain's driver. The domain panics, and stops taking interrupts; twind is
# killed: each time the twin is the way out again, and a guest's stream only waits.
driver=$1
. /xen/driving.sh
. /xen/switching.sh
. /xen/supervising.sh
modprobe xen-pciback
nic=$(devices class 0x020000)
check assignable-add xl pci-assignable-add $nic
# Nobody but twins has the CPUs that come beside the first.
driving dd "pci=['$nic,permissive=1']" "$(plug 2)" 'vcpus=1' 'maxvcpus=4' \
	"extra='$kernel_args iommu=soft swiotlb=4096 tandem.do=pci+bridge_switch:$driver+twin_kept+drive'"
mkdir -p $logs
: > $(log_of dd)
way_out dd
check tandemd-starts daemon_starts || exit
remember
check and-ends daemon_ends
supervised 'crashes = 20' 'back-off-ms = 100' 'twin = true'
check tandemd-starts-again daemon_starts || exit
config u1 "$(plug 3)"
check the-driver-domain-comes daemon_said 1 'it is the way out'
check a-guest-starts boot u1 || exit
check address plugged_address u1 3
by() { tandemd --list | grep "way out: dd by its $1"; }
check the-way-out-is-the-twin wait_for 120 by card || { in_guest dd 10 'cat /tmp/twind; dmesg | tail -n 4'; exit; }
check the-outside-answers in_guest u1 40 'wait_for 30 ping -c 1 -W 1 10.9.0.1'
endless() { in_guest u1 10 '(tcptest put 10.9.0.1 65536) > /tmp/stream 2>&1 &' && moves u1; }
check a-stream-without-an-end endless

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
echo $(($(cat /tmp/free.) - 128)) > /tmp/free.
check nothing-stays nothing_stays
check frames-agree-at-the-end audit
check assignable-remove xl pci-assignable-remove $nic
check tandemd-ends daemon_ends
cat $daemon_log > /dev/console
