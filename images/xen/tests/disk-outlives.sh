# disk-outlives.sh MIB: a guest's disk is that of a driver domain, by the hypervisor. In the middle of its work the driver domain is destroyed, and
# its successor crashes; the guest sees no error, and every byte is right. The host looks at the medium afterwards.
mib=${1:-4}
. /xen/driving.sh
. /xen/switching.sh
modprobe xen-pciback
nvme=$(devices class 0x0108)
check assignable-add xl pci-assignable-add $nvme
mkdir -p /etc/tandem
printf '[service.disk]\nkind = "disk"\n' > /etc/tandem/tandemd.toml
refused() { ! tandemd --check 2> /tmp/refused && grep -q "$1" /tmp/refused || { cat /tmp/refused; return 1; }; }
check a-service-without-media-is-refused refused 'no `driver-domain` that has the media'
echo 'driver-domain = "dd"' >> /etc/tandem/tandemd.toml
check tandemd-starts daemon_starts || exit
remember
serve_disk() {
	driving dd "pci=['$nvme,permissive=1']"
	boot dd || return 1
	in_guest dd 150 'job_backend nvme'
}
# What daemon and stores have, for who has to find out why something failed.
told() {
	# Whether the medium's interrupts come, and what its driver says of them.
	in_guest dd 30 'grep -E "nvme|pciback" /proc/interrupts; sleep 3; grep nvme /proc/interrupts; dmesg | grep -E "nvme|blkback" | tail -n 6'
	xl debug-keys i
	in_guest dd 20 'tail -n 3 /var/log/xen/xen-hotplug.log; dmesg | tail -n 3'
	xenstore-ls /local/domain/$(xl domid disk)/device
	xenstore-ls /local/domain/$(xl domid dd)/backend
	pidof tandemd || echo "tandemd has ended"
	tail -n 3 $daemon_log
	return 1
}
config u1 'disk=["format=raw,vdev=xvda,access=rw,backend=disk,script=disk-plug,target=/dev/nvme0n1"]'
check a-guest-starts-before-its-driver-domain boot u1 || { tail -n 5 $daemon_log; xenstore-ls /local/domain/$(xl domid disk); exit; }
check a-driver-domain-has-the-disk serve_disk || exit
has_disk() { in_guest u1 90 'modprobe xen-blkfront; wait_for 80 test -b /dev/xvda' || told; }
check the-guest-has-it has_disk || exit

# Verified again and again, with flushes; its rounds are counted.
rounds() { in_guest u1 20 'cat /tmp/rounds' | tail -n 1; }
in_guest u1 10 "(n=0; echo 0 > /tmp/rounds; while [ ! -e /tmp/stop ] && disktest /dev/xvda $mib 2 600 > /tmp/disk; do n=\$((n + 1)); echo \$n > /tmp/round && mv /tmp/round /tmp/rounds; done) > /dev/null 2>&1 &"
more_rounds() {
	local before=$(rounds)
	[ -n "$before" ] && wait_for 200 eval "[ \"\$(rounds)\" -gt $((before + 1)) ]" && return
	echo "rounds $before before, now $(rounds)"
	in_guest u1 20 'cat /tmp/disk; dmesg | tail -n 3'
	told
}
serves() { wait_for 60 eval "[ \"\$(grep -c 'is its back end' $daemon_log)\" -ge $1 ]" || told; }
check rounds-before more_rounds
check it-has-a-back-end serves 1
# Its device is taken away from it while it runs, and its back end answers with errors.
check destroyed-in-the-middle eval 'xl destroy dd && gone dd'
check the-guest-waits in_guest u1 20 'pidof disktest'
check frames-agree audit
check a-second-driver-domain serve_disk || exit
check it-is-the-next-back-end serves 2
check the-disk-goes-on more_rounds
crashed() { echo "c1 echo c > /proc/sysrq-trigger" > $(xenstore-read /local/domain/$(xl domid dd)/console/tty); gone dd 60; }
check it-crashes-in-the-middle crashed
check tandemd-is-killed eval 'kill -9 $(cat /tmp/tandemd.pid); wait_for 10 eval "! pidof tandemd"'
check tandemd-starts-again daemon_starts
check a-third-driver-domain serve_disk || exit
check it-is-the-next-back-end-too serves 3
check the-disk-still-goes-on more_rounds
# A device is taken away from it while it runs. Nobody knows whether that had the medium, so its back end begins again.
card=$(devices class 0x0200 | head -n 1)
check another-device eval 'xl pci-assignable-add $card && xl pci-attach dd $card,permissive=1'
check which-is-taken-again eval 'xl pci-detach dd $card && xl pci-assignable-remove $card'
check it-becomes-the-back-end-again serves 4
check the-disk-goes-on-after-all more_rounds
check the-disk-is-right said 'disk ok' u1 200 "touch /tmp/stop; wait_for 100 eval '! pidof disktest' && disktest /dev/xvda $mib 2"
no_errors() { in_guest u1 10 'dmesg | grep -iE "i/o error|blkfront.*error|bug:|oops" || true' | tee /tmp/errors; ! grep -q . /tmp/errors; }
check the-guest-saw-no-error no_errors
check no-access-was-stopped no_dma_stopped
check the-guest-goes eval 'xl destroy u1 && gone u1'
nothing_is_left() { wait_for 20 no_node 'vbd/[1-9]' || told; }
check no-node-stays nothing_is_left
check the-driver-domain-goes eval 'xl pause dd && xl destroy dd && gone dd'
check frames-agree-at-the-end audit
check assignable-remove xl pci-assignable-remove $nvme
cat $daemon_log > /dev/console
