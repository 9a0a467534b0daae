# causes.sh DRIVER MIB: a driver domain lives, but is of no use any more. Each is noticed, has its own name in the log and in the
# counters, and another instance comes. DRIVER is of a network card, or nvme.
driver=$1
mib=${2:-2}
few=$((mib < 16 ? mib : 16))
. /xen/driving.sh
. /xen/switching.sh
. /xen/supervising.sh

# no_registers: its device does not hear what the driver writes to it, nor reach memory
no_registers='for f in /sys/bus/pci/devices/*/config; do printf "\0\0" | dd of=$f bs=1 seek=4 conv=notrunc; done'
# unwatched: the hypervisor waits for a sign each two seconds, and it gives none any more. Linux lets a domain's programs call the hypervisor for that only
# if its module was told so.
unwatched='killall xl; rmmod xen-privcmd; modprobe xen-privcmd unrestricted=1; /usr/lib/xen-4.17/bin/xenwatchdogd 2 1 && sleep 3 && killall -STOP xenwatchdogd'
# counted CAUSE...: each of them once
counted() {
	local each
	tandemd --list > /tmp/listed
	for each in "$@"; do grep -qE "[; ]$each 1(,|\$)" /tmp/listed || { echo "$each is not counted once"; cat /tmp/listed; return 1; }; done
}

if [ $driver = nvme ]; then
	modprobe xen-pciback
	device=$(devices class 0x0108)
	check assignable-add xl pci-assignable-add $device
	driving dd "pci=['$device,permissive=1']" "extra='$kernel_args oops=panic iommu=soft swiotlb=4096 tandem.do=pci+backend:nvme+drive'"
	mkdir -p $logs /etc/tandem
	: > $(log_of dd)
	printf '[service.disk]\nkind = "disk"\ndriver-domain = "dd"\n' > /etc/tandem/tandemd.toml
	check tandemd-starts daemon_starts || exit
	remember_frames
	check and-ends daemon_ends
	printf '[service.disk.supervise]\nconfig = "/tmp/dd.cfg"\ncrashes = 20\nback-off-ms = 100\nundrained-ms = 5000\nassign = true\n' >> /etc/tandem/tandemd.toml
	check tandemd-starts-again daemon_starts || exit
	check it-starts-the-driver-domain daemon_said 1 'it has the disks' || exit
	config u1 'disk=["format=raw,vdev=xvda,access=rw,backend=disk,script=disk-plug,target=/dev/nvme0n1"]'
	check a-guest-starts boot u1 || exit
	check the-guest-has-its-disk in_guest u1 90 'modprobe xen-blkfront; wait_for 80 test -b /dev/xvda' || exit
	check the-guest-writes writes
	check and-verifies more_rounds
	disk_survives undrained 'it has answered nothing' tell_dd "$no_registers"
	check it-was-counted-by-its-name counted undrained
	check the-disk-is-right said 'disk ok' u1 200 "touch /tmp/stop; wait_for 100 eval '! pidof disktest' && disktest /dev/xvda $mib 2"
	check the-guest-saw-no-error no_disk_errors
	check the-guest-goes eval 'xl destroy u1 && gone u1'
	check parked-at-the-end eval 'twinctl park disk && gone dd 60'
	remember_less $((1288 + 16))
else
	supervised_machine standby:$driver || exit
	device=$nic
	supervised 'crashes = 20' 'back-off-ms = 100' 'silent-ms = 5000' 'assign = true'
	check tandemd-starts-again daemon_starts || exit
	config u1 "$(plug 3)"
	check it-starts-the-driver-domain daemon_said 1 'it is the way out'
	check a-guest-starts boot u1 || exit
	check address plugged_address u1 3
	check the-outside-answers outside_answers u1 30
	check a-stream-without-an-end streams
	# Its neighbour stays known, so it goes on to send.
	check pings in_guest u1 20 'arp -s 10.9.0.1 $(arp -n | sed -n "s/.*(10.9.0.1) at \([0-9a-f:]*\).*/\1/p"); ping -i 0.2 10.9.0.1 > /dev/null 2>&1 &'
	recovers silent 'nothing has come from outside' tell_dd 'ip link set eth0 nomaster'
	recovers watchdog 'not wound up its watchdog' tell_dd "$unwatched"
	check each-was-counted-by-its-name counted silent watchdog
	in_guest u1 10 'killall tcptest ping'
	check packets-go-on said 'net ok' u1 $((60 + few * 8)) "$keeps && nettest eth0 10.9.0.1 $few 64"
	check streams-go-on said 'tcp ok' u1 $((60 + mib * 4)) "tcptest get 10.9.0.1 $mib"
	check the-guest-goes eval 'xl destroy u1 && gone u1'
	check parked-at-the-end eval 'twinctl park net && gone dd 60'
fi
check nothing-stays nothing_stays
check frames-agree-at-the-end audit
check assignable-remove xl pci-assignable-remove $device
check tandemd-ends daemon_ends
cat $daemon_log > /dev/console
