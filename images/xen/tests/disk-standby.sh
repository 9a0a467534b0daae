# disk-standby.sh MIB: a driver domain that has booted waits for the disk's controller, and takes the place of the one that dies. A guest's requests
# only wait. The host looks at the medium afterwards.
mib=${1:-2}
. /xen/driving.sh
. /xen/switching.sh
. /xen/supervising.sh
modprobe xen-pciback
nvme=$(devices class 0x0108)
check assignable-add xl pci-assignable-add $nvme
driving dd "pci=['$nvme,permissive=1']" "extra='$kernel_args oops=panic iommu=soft swiotlb=4096 tandem.do=standby_disk:nvme+drive'"
mkdir -p $logs /etc/tandem
: > $(log_of dd)
printf '[service.disk]\nkind = "disk"\ndriver-domain = "dd"\n[service.disk.supervise]\nconfig = "/tmp/dd.cfg"\n' > /etc/tandem/tandemd.toml
for line in 'crashes = 20' 'back-off-ms = 100' 'standby = 1'; do echo "$line" >> /etc/tandem/tandemd.toml; done
check tandemd-starts daemon_starts || exit
check it-starts-the-driver-domain daemon_said 1 'it has the disks' || exit
config u1 'disk=["format=raw,vdev=xvda,access=rw,backend=disk,script=disk-plug,target=/dev/nvme0n1"]'
check a-guest-starts boot u1 || exit
check the-guest-has-its-disk in_guest u1 90 'modprobe xen-blkfront; wait_for 80 test -b /dev/xvda' || exit
check the-guest-writes writes
check and-verifies more_rounds

# waits COUNT: so many have booted and waited so far
waits() { daemon_said $1 'waits to take its place' 240; }
# outages WORDS: of recoveries with these steps, in ms
outages() { sed -n "s/.*recovered, .*$1.*first answer \\([0-9]*\\) ms.*/\\1/p" $daemon_log; }
check another-one-waits waits 1
check in-its-name eval 'xl domid dd-standby'
# With requests of its own under way it leaves completions that it has not read, and its wire up.
reads='for n in 1 2 3 4 5 6 7 8; do (while :; do dd if=/dev/nvme0n1 of=/dev/null bs=128k iflag=direct; done) > /dev/null 2>&1 & done'
left() { xl dmesg | grep -c "$nvme: its owner has left completions"; }
disk_survives a-panic 'has panicked' tell_dd "$reads; usleep 300000; echo c > /proc/sysrq-trigger"
check handed-over daemon_said 1 'recovered, panicked: .*handed over .*probed .*back end .*first answer'
check xl-knows-whose-the-device-is eval "xl pci-list dd | grep '$nvme'"
# Its driver turns them on, off and on again, which it cannot where the PCI back end answers. The log of its console has the name that it was created with.
messages() {
	local its_log=dd-standby
	in_guest dd 20 'grep -E "msi-x +nvme0q1" /proc/interrupts'
}
check its-driver-has-messages messages
check and-nothing-is-left-of-the-old-one gone dd-remains 60
check the-next-one-waits waits 2
disk_survives wedged 'taken no event' tell_dd "$reads; usleep 300000; job_wedge"
echo "its wire was up $(left) times" > /dev/console
check handed-over-again daemon_said 1 'recovered, wedged: .*handed over .*first answer'
check no-access-was-stopped no_dma_stopped
check the-third-waits waits 3
check no-wire-was-given-up eval "! dmesg | grep 'nobody cared'"
check frames-agree audit
# A new daemon finds the one that waits, and uses it.
check tandemd-is-killed daemon_ends
check destroyed-without-tandemd eval 'xl destroy dd && gone dd'
ways=$(grep -c 'it has the disks' $daemon_log)
check the-next-tandemd daemon_starts
check hands-over daemon_said $((ways + 1)) 'it has the disks'
check and-the-writes-go-on more_rounds
# Without one that could take the place all of it has to be started.
check the-fourth-waits waits 4
check it-is-paused xl pause dd-standby
disk_survives without 'has panicked' eval "tell_dd 'echo c > /proc/sysrq-trigger'"
with=$(outages 'noticed .*handed over' | sort -n | head -n 1)
without=$(outages 'noticed .*created' | tail -n 1)
echo "outage with one that waits $with ms, without $without ms" > /dev/console
check it-is-quicker eval '[ $with -lt $without ] || { echo $with and $without ms; false; }'
# One of another image takes the place as one that waits does.
words="$kernel_args oops=panic iommu=soft swiotlb=4096 mark=2 tandem.do=standby_disk:nvme+drive"
check another-image-takes-the-place twinctl upgrade disk --extra "$words"
check as-one-that-waited daemon_said 1 'recovered, upgrade: .*handed over .*first answer'
status() { twinctl status disk | tee /tmp/status; grep -q "$1" /tmp/status; }
check it-is-shown status 'upgraded to extra=.*mark=2'
check and-the-writes-go-on-by-it more_rounds
check xl-was-not-needed eval "! grep 'xl is to' $daemon_log"
check the-disk-is-right said 'disk ok' u1 200 "touch /tmp/stop; wait_for 100 eval '! pidof disktest' && disktest /dev/xvda $mib 2"
check the-guest-saw-no-error no_disk_errors
check the-guest-goes eval 'xl destroy u1 && gone u1'
check parked-at-the-end eval 'twinctl park disk && gone dd 60 && gone dd-standby 60'
check frames-agree-at-the-end audit
check assignable-remove xl pci-assignable-remove $nvme
check tandemd-ends daemon_ends
cat $daemon_log > /dev/console
