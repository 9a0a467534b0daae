# both.sh MIB: a driver domain has the network card and a guest's disk, and is looked after for the network. When it dies both go on; and when it is of no
# use any more for the disk alone, another one comes, too.
mib=${1:-2}
. /xen/driving.sh
. /xen/switching.sh
. /xen/supervising.sh
take_nic
nvme=$(devices class 0x0108)
check assignable-add-the-disk xl pci-assignable-add $nvme
driving dd "pci=['$nic,permissive=1','$nvme,permissive=1']" "$(plug 2)" \
	"extra='$kernel_args oops=panic iommu=soft swiotlb=4096 tandem.do=pci+backend:nvme+bridge_switch:e1000e+drive'"
mkdir -p $logs
: > $(log_of dd)
serves() { way_out dd && printf '[service.disk]\nkind = "disk"\ndriver-domain = "dd"\n' >> /etc/tandem/tandemd.toml; }
serves
check tandemd-starts daemon_starts || exit
remember_frames
check and-ends daemon_ends
serves
printf '[service.net.supervise]\nconfig = "/tmp/dd.cfg"\ncrashes = 20\nback-off-ms = 100\nassign = true\n' >> /etc/tandem/tandemd.toml
check tandemd-starts-again daemon_starts || exit
check it-starts-the-driver-domain daemon_said 1 'it is the way out' || exit
config u1 "$(plug 3)" 'disk=["format=raw,vdev=xvda,access=rw,backend=disk,script=disk-plug,target=/dev/nvme0n1"]'
check a-guest-starts boot u1 || exit
check address plugged_address u1 3
check the-outside-answers outside_answers u1 30
check the-guest-has-its-disk in_guest u1 90 'modprobe xen-blkfront; wait_for 80 test -b /dev/xvda' || exit
check a-stream-without-an-end streams
check the-guest-writes writes
check and-verifies more_rounds

recovers a-panic 'has panicked' eval "tell_dd 'echo c > /proc/sysrq-trigger'"
check a-panic-and-the-writes-go-on more_rounds
# The disk's controller does not hear what its driver writes to it, nor reach memory; the card works.
recovers the-disk-is-lost 'disk: it has answered nothing' tell_dd 'for f in /sys/bus/pci/drivers/nvme/0000*/config; do printf "\0\0" | dd of=$f bs=1 seek=4 conv=notrunc; done'
check the-disk-is-lost-and-the-writes-go-on more_rounds
counts() { tandemd --list | tee /tmp/counts | grep -q 'panicked 1, recovered 3, undrained 1' || { cat /tmp/counts; return 1; }; }
check nothing-else-was-noticed counts
check no-access-was-stopped no_dma_stopped
in_guest u1 10 'killall tcptest'
check packets-go-on said 'net ok' u1 $((60 + mib * 8)) "$keeps && nettest eth0 10.9.0.1 $mib 64"
check streams-go-on said 'tcp ok' u1 $((60 + mib * 4)) "tcptest get 10.9.0.1 $mib"
check the-disk-is-right said 'disk ok' u1 200 "touch /tmp/stop; wait_for 100 eval '! pidof disktest' && disktest /dev/xvda $mib 2"
check the-guest-saw-no-error no_disk_errors
check the-guest-goes eval 'xl destroy u1 && gone u1'
check parked-at-the-end eval 'twinctl park net && gone dd 60'
# The disk service's domain keeps the pages between guest and driver domain, and tables for them.
remember_less $((1288 + 16))
check nothing-stays nothing_stays
check frames-agree-at-the-end audit
check assignable-remove xl pci-assignable-remove $nic
check assignable-remove-the-disk xl pci-assignable-remove $nvme
check tandemd-ends daemon_ends
cat $daemon_log > /dev/console
