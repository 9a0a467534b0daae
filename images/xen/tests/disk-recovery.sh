# disk-recovery.sh MIB: tandemd looks after the driver domain that has a guest's disk. It dies in several ways while the guest writes, flushes and
# verifies; another comes each time, and the guest sees no error. Parked, the guest gets errors. The host looks at the medium afterwards.
mib=${1:-2}
. /xen/driving.sh
. /xen/switching.sh
. /xen/supervising.sh
modprobe xen-pciback
nvme=$(devices class 0x0108)
check assignable-add xl pci-assignable-add $nvme
driving dd "pci=['$nvme,permissive=1']" "extra='$kernel_args oops=panic iommu=soft swiotlb=4096 tandem.do=pci+backend:nvme+drive'"
mkdir -p $logs /etc/tandem
: > $(log_of dd)
served() { printf '[service.disk]\nkind = "disk"\ndriver-domain = "dd"\n' > /etc/tandem/tandemd.toml; }
looked_after() {
	served
	printf '[service.disk.supervise]\nconfig = "/tmp/dd.cfg"\n' >> /etc/tandem/tandemd.toml
	for line in "$@"; do echo "$line" >> /etc/tandem/tandemd.toml; done
}
refused() { ! tandemd --check 2> /tmp/refused && grep -q "$1" /tmp/refused || { cat /tmp/refused; return 1; }; }
looked_after 'twin = true'
check a-twin-of-a-disk-is-refused refused 'driver domains of interfaces'
served
check tandemd-starts daemon_starts || exit
remember_frames
check and-ends daemon_ends
looked_after 'crashes = 20' 'back-off-ms = 100'
check tandemd-starts-again daemon_starts || exit
check it-starts-the-driver-domain daemon_said 1 'it has the disks' || exit
config u1 'disk=["format=raw,vdev=xvda,access=rw,backend=disk,script=disk-plug,target=/dev/nvme0n1"]'
check a-guest-starts boot u1 || exit
has_disk() { in_guest u1 90 'modprobe xen-blkfront; wait_for 80 test -b /dev/xvda' || { tail -n 5 $daemon_log; return 1; }; }
check the-guest-has-its-disk has_disk || exit

check the-guest-writes writes
check and-verifies more_rounds
disk_survives a-panic 'has panicked' eval "tell_dd 'echo c > /proc/sysrq-trigger'"
# The toolstack takes the device from a domain that runs, whose back end answers with errors then.
disk_survives a-destruction 'was destroyed' xl destroy dd
disk_survives wedged 'taken no event' tell_dd job_wedge
check no-access-was-stopped no_dma_stopped
listed() { tandemd --list | tee /tmp/listed | grep -q 'destroyed 1, panicked 1, recovered 4, wedged 1' || { cat /tmp/listed; return 1; }; }
check nothing-else-was-noticed listed
check the-disk-is-right said 'disk ok' u1 200 "touch /tmp/stop; wait_for 100 eval '! pidof disktest' && disktest /dev/xvda $mib 2"
check the-guest-saw-no-error no_disk_errors

check the-operator-parks-it eval 'twinctl park disk && gone dd 60'
check requests-are-answered-with-errors daemon_said 1 'its requests are answered with errors' 30
check and-the-guest-gets-them in_guest u1 60 '! disktest /dev/xvda 1 1'
backs=$(grep -c 'is its back end' $daemon_log)
check the-operator-lets-it-come twinctl unpark disk
check and-it-comes daemon_said $((backs + 1)) 'is its back end' 200
check the-disk-is-right-again said 'disk ok' u1 200 "disktest /dev/xvda $mib 2"
# One that dies whenever it sees its controller: after so many deaths in a row it rests.
looked_after 'crashes = 3' 'back-off-ms = 100'
served=$(grep -c ': served' $daemon_log)
check fewer-deaths-are-borne eval 'twinctl reload && daemon_said $((served + 1)) ": served" 20'
check the-guest-writes-again writes
check and-verifies-again more_rounds
cp /tmp/dd.cfg /tmp/dd.kept
sed -i 's/tandem.do=[^ "]*/tandem.do=dies_of_nic/' /tmp/dd.cfg
errors=$(grep -c 'its requests are answered with errors' $daemon_log)
check it-dies-again-and-again eval "tell_dd 'echo c > /proc/sysrq-trigger'"
check and-is-parked-in-the-end daemon_said 1 'parked: it failed 4 times within 600 s' 200
check all-of-it-is-one-outage daemon_said 1 'given up, panicked: .*again.*again.*again.*parked' 10
check it-is-gone gone dd 60
check what-waited-is-answered-with-errors daemon_said $((errors + 1)) 'its requests are answered with errors' 30
check and-the-guest-that-wrote-gets-them in_guest u1 60 "wait_for 50 eval '! pidof disktest' && ! disktest /dev/xvda 1 1"
usleep 2000000
check and-nobody-comes eval '! xl domid dd'
check it-is-said-why eval 'twinctl status disk | grep "parked: it failed 4 times within 600 s"'
check its-device-stays-put-aside eval "xl pci-assignable-list | grep '$nvme'"
mv /tmp/dd.kept /tmp/dd.cfg
backs=$(grep -c 'is its back end' $daemon_log)
check the-operator-lets-it-come-again twinctl unpark disk
check and-it-comes-again daemon_said $((backs + 1)) 'is its back end' 200
check the-guest-writes-after-that writes
check and-verifies-after-that more_rounds
# The deaths of then are forgiven.
disk_survives once-more 'has panicked' eval "tell_dd 'echo c > /proc/sysrq-trigger'"
check the-disk-is-right-after-that said 'disk ok' u1 200 "touch /tmp/stop; wait_for 100 eval '! pidof disktest' && disktest /dev/xvda $mib 2"
check the-guest-goes eval 'xl destroy u1 && gone u1'
check parked-at-the-end eval 'twinctl park disk && gone dd 60'
# The service's domain keeps the pages between guest and driver domain, and tables for them.
remember_less $((1288 + 16))
check nothing-stays nothing_stays
check frames-agree-at-the-end audit
check assignable-remove xl pci-assignable-remove $nvme
check tandemd-ends daemon_ends
cat $daemon_log > /dev/console
