# grub.sh [nvme]: another kind of kernel. GRUB's Xen port reads the guest's own disk and starts the kernel that it finds there. The disk is a file of
# domain 0's, or that of a driver domain, which dies while GRUB reads.
medium=$1
for m in crc32c_generic ext4; do modprobe $m; done
# GRUB reads slowly, a page a request: the initrd is small.
without_tools() {
	mkdir -p /tmp/initrd && cd /tmp/initrd && cpio -i < /guest/guest.cpio 2> /dev/null && rm -r tools || return 1
	find . | cpio -o -H newc 2> /dev/null | gzip -1
	cd / && rm -r /tmp/initrd
}
make_disk() {
	truncate -s 96M /tmp/disk && mke2fs -F -b 4096 /tmp/disk && mkdir -p /tmp/mnt && mount -o loop /tmp/disk /tmp/mnt || return 1
	mkdir -p /tmp/mnt/boot/grub
	cp /guest/vmlinuz /tmp/mnt/boot/ && without_tools > /tmp/mnt/boot/guest.cpio.gz || return 1
	cat > /tmp/mnt/boot/grub/grub.cfg <<-X
		linux /boot/vmlinuz console=hvc0 quiet panic=-1 tandem.do=serve from=disk
		initrd /boot/guest.cpio.gz
		boot
	X
	umount /tmp/mnt
}
check a-disk-with-a-kernel make_disk || exit
grub() { config g1 'memory=256' 'kernel="/guest/grub-x86_64-xen.bin"' 'ramdisk=""' 'extra="(hd0)/boot/grub"' "$@"; }
if [ "$medium" = nvme ]; then
	. /xen/driving.sh
	. /xen/switching.sh
	. /xen/supervising.sh
	modprobe nvme
	check it-is-the-mediums wait_for 20 dd if=/tmp/disk of=/dev/nvme0n1 bs=1M conv=fsync
	rm /tmp/disk
	modprobe xen-pciback
	nvme=$(devices class 0x0108)
	driving dd "pci=['$nvme,permissive=1']" "extra='$kernel_args oops=panic iommu=soft swiotlb=4096 tandem.do=pci+backend:nvme+drive'"
	mkdir -p /etc/tandem
	printf '[service.disk]\nkind = "disk"\ndriver-domain = "dd"\n[service.disk.supervise]\nconfig = "/tmp/dd.cfg"\nassign = true\nback-off-ms = 100\n' > /etc/tandem/tandemd.toml
	grub 'disk=["format=raw,vdev=xvda,access=rw,backend=disk,script=disk-plug,target=/dev/nvme0n1"]'
else
	grub 'disk=["format=raw,vdev=xvda,access=rw,target=/tmp/disk"]' 'vif=["mac=00:16:3e:00:00:03,bridge=xenbr0"]'
fi
mkdir -p $logs
if [ "$medium" = nvme ]; then
	: > $(log_of dd)
	check tandemd-starts daemon_starts || exit
	check it-starts-the-driver-domain daemon_said 1 'it has the disks' || exit
fi
# What is done once stays: dom0's own memory.
xl create -p /tmp/g1.cfg > /dev/null && xl destroy g1 && gone g1
remember
: > $logs/guest-g1.log
# While GRUB reads.
panics() { [ "$medium" != nvme ] || { wait_for 60 grep -q 'Reading (xen/xvda)/boot/grub/grub.cfg' $logs/guest-g1.log && tell_dd 'echo c > /proc/sysrq-trigger'; }; }
started() { xl create /tmp/g1.cfg > /tmp/g1.create 2>&1 || { cat /tmp/g1.create; return 1; }; panics && serving g1 240; }
check grub-starts-linux started || exit
check it-said-so grep -q 'Reading (xen/xvda)/boot/grub/grub.cfg' $logs/guest-g1.log
check with-what-its-configuration-says said 'from=disk' g1 10 'cat /proc/cmdline'
check the-disk-is-linuxs-now in_guest g1 60 'modprobe xen-blkfront; wait_for 10 test -b /dev/xvda; modprobe crc32c_generic; modprobe ext4; mkdir -p /mnt; mount /dev/xvda /mnt && grep -q from=disk /mnt/boot/grub/grub.cfg && dd if=/dev/urandom of=/mnt/new bs=64k count=64 2> /dev/null && umount /mnt'
if [ "$medium" = nvme ]; then
	check the-driver-domain-had-died daemon_said 1 'has panicked' 1
	check before-linux-had-the-disk daemon_said 1 'recovered, panicked: ' 60
	check the-guest-saw-no-error no_disk_errors g1
else
	check network in_guest g1 30 'job_address 3'
fi
again() { : > $logs/guest-g1.log; xl reboot g1 && panics && serving g1 240; }
check reboot-goes-through-grub again
check the-disk-was-kept in_guest g1 60 'modprobe xen-blkfront; wait_for 10 test -b /dev/xvda; modprobe crc32c_generic; modprobe ext4; mkdir -p /mnt; mount -o ro /dev/xvda /mnt && [ $(stat -c %s /mnt/new) = 4194304 ] && umount /mnt'
check shutdown eval 'xl shutdown -w g1 && gone g1'
if [ "$medium" = nvme ]; then
	check each-death-was-noticed daemon_said 2 'recovered, panicked: ' 60
	check no-access-was-stopped no_dma_stopped
	check frames-agree audit
	cat $daemon_log > /dev/console
	return
fi
no_disk() { mount -o loop /tmp/disk /tmp/mnt && rm -r /tmp/mnt/boot; umount /tmp/mnt; : > $logs/guest-g1.log; xl create /tmp/g1.cfg > /dev/null && wait_for 30 grep -q 'grub> \|grub rescue\|error:' $logs/guest-g1.log && xl destroy g1 && gone g1; }
check without-a-kernel-grub-says-so no_disk
check nothing-stays nothing_stays
