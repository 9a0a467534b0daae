# twin-loads.sh DRIVER: a driver domain gives its live driver a twin, which is loaded, called and unloaded while the driver works.
driver=$1
. /xen/driving.sh
take_nic
remember
# Nobody but twins has the CPUs that come beside the first.
driving dd "pci=['$nic,permissive=1']" 'vcpus=1' 'maxvcpus=4'
check a-driver-domain-starts boot dd || exit
check it-has-the-network in_guest dd 150 "job_nic $driver; ping -c 1 -W 1 10.9.0.1" || exit
refuses() { in_guest dd 60 "twind $2 2>&1" > /tmp/out && { cat /tmp/out; return 1; }; cat /tmp/out; grep -q "$1" /tmp/out; }
check without-the-module refuses 'load the kernel module' '--interface eth0'
check the-module-is-loaded in_guest dd 30 job_twin_module
if ! xl info | grep -q '^xen_extra.*tandem'; then
	check another-hypervisor refuses 'this hypervisor is not Tandem' '--interface eth0'
	return
fi
check without-an-interface refuses 'say which interface' ''
check an-interface-that-is-not-there refuses 'there is no interface eth7' '--interface eth7'
check an-interface-that-is-no-devices refuses 'not the interface of a PCI device' '--interface lo'
check an-unknown-mode refuses 'there is no mode stlb' '--interface eth0 --mode stlb'
check a-mode-that-was-not-allowed-at-boot refuses 'booted without twin-stlb' '--interface eth0 --mode twin-stlb'
check an-empty-request said 'Invalid argument' dd 10 'printf xxx | dd of=/dev/tandem 2>&1; true'

traffic() { said 'net ok' dd 90 'nettest eth0 10.9.0.1 4 64'; }
check packets-before traffic
check the-twin-is-loaded-and-called said 'twind: [0-9]* invocations, 0 aborts' dd 300 'twind --interface eth0 --try 100 2>&1'
# For who reads the log: what is not done in the hypervisor.
in_guest dd 300 'twind --interface eth0 --try 300 > /tmp/try 2>&1 & nettest eth0 10.9.0.1 8 64; wait $!; cat /tmp/try' > /tmp/try
while read -r line; do say "$line"; done < /tmp/try
check the-twin-is-called-while-packets-come grep -q 'invocations, 0 aborts' /tmp/try
check and-none-of-them-is-lost grep -q 'net ok' /tmp/try
# The handler of a card with a line wants a poll only if the card has something, and then its own handler has mostly seen that already.
[ $driver != e1000e ] || check functions-of-the-kernel-were-called grep -q 'it had __napi_schedule' /tmp/try
check packets-after traffic
in_guest dd 60 'job_twind --interface eth0 --loaded'
loaded() { wait_for 120 said 'not attached, as asked for' dd 10 'cat /tmp/twind' || { in_guest dd 10 'cat /tmp/twind'; return 1; }; }
check the-twin-is-loaded loaded
in_guest dd 10 'cat /tmp/twind'
check packets-while-it-is-loaded traffic
# A CPU that the toolstack gives waits for somebody who switches it on.
second=/sys/devices/system/cpu/cpu1/online
stays_down() { xl vcpu-set dd 2 && said 'busy' dd 30 "wait_for 10 test -e $second; echo 1 > $second; true"; }
check a-cpu-whose-area-is-lent-stays-down stays_down
check the-interface-goes-down said 'eth0 is down' dd 30 'ip link set eth0 down; sleep 1; cat /tmp/twind'
check and-up in_guest dd 60 'ip link set eth0 up; wait_for 20 ping -c 1 -W 1 10.9.0.1'
unloads() { in_guest dd 60 'kill $(cat /tmp/twind.pid); wait_for 20 rmmod tandem' && in_guest dd 60 'job_twin_module'; }
check the-module-goes-when-it-is-over unloads
check packets-afterwards traffic
check now-the-cpu-comes said '^2$' dd 30 "echo 1 > $second; nproc"
check and-goes said '^1$' dd 30 "echo 0 > $second; nproc"
in_guest dd 60 'job_twind --interface eth0 --loaded'
check the-twin-is-loaded-again loaded
check the-driver-goes in_guest dd 60 "rmmod $driver"
check and-the-daemon-says-so said 'interface eth0 is gone' dd 30 'wait_for 10 grep gone /tmp/twind; tail -n 1 /tmp/twind'
check the-driver-comes-back in_guest dd 60 "job_nic $driver; ping -c 1 -W 1 10.9.0.1"
check packets-of-its-successor traffic
loaded_again() { wait_for 120 said 'not attached, as asked for' dd 10 'tail -n 1 /tmp/twind' || { in_guest dd 10 'cat /tmp/twind'; return 1; }; }
check the-twin-of-its-successor loaded_again
# What the console says meanwhile is no answer.
warnings='warn|bug:|oops:|cannot be|do not come'
no_warnings() {
	in_guest dd 10 "dmesg | grep -iE '$warnings' || true" > /tmp/warnings || { cat /tmp/warnings; return 1; }
	! grep -iE "$warnings" /tmp/warnings
}
in_guest dd 10 'kill $(cat /tmp/twind.pid)'
in_guest dd 60 'job_twind --interface eth0'
refused() { wait_for 120 said 'not attached: interface 0 of this' dd 10 'cat /tmp/twind' || { in_guest dd 10 'cat /tmp/twind'; return 1; }; }
check without-a-switch-it-gets-no-card refused
check packets-of-a-driver-that-keeps-its-card traffic
check no-warnings no_warnings
check frames-agree audit
destroyed() { xl destroy dd && gone dd; }
check destroy destroyed
# But page tables of the place where the twin was, for the next one there.
remember_less 128
check nothing-stays nothing_stays
check frames-agree-at-the-end audit
check assignable-remove xl pci-assignable-remove $nic
