# no-passthrough.sh: without an IOMMU, and nobody said that this does not matter, no device leaves dom0.
modprobe xen-pciback
nic=$(grep -l "^0x020000" /sys/bus/pci/devices/*/class | cut -d/ -f6)
refused() { # WORDS COMMAND...: it fails and says why
	local words=$1 out
	shift
	out=$("$@" 2>&1) && { echo "it was done: $out"; return 1; }
	echo "$out" | grep -q "$words" || { echo "$out"; return 1; }
}
check no-directio sh -c '! xl info | grep virt_caps | grep -q directio'
check assignable-add-is-refused refused "failed to quarantine" xl pci-assignable-add $nic
config d1 "pci=['$nic']"
check create-is-refused refused "passthrough not supported" xl create /tmp/d1.cfg
config d2
check a-domain-without-devices-starts boot d2
check attach-is-refused refused "xc_assign_device failed" xl pci-attach d2 $nic
check xen-says-why eval 'xl dmesg | grep -q "cannot go to d.*without an IOMMU"'
check destroy eval 'xl destroy d2 && gone d2'
