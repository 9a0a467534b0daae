# For bash in dom0, after lib.sh: driver domains, and guests that have their network from one.

# devices FILE START: functions whose file in /sys (class, device) starts so
devices() { grep -l "^$2" /sys/bus/pci/devices/*/$1 | cut -d/ -f6; }

# take_nic: dom0 gives up its network card, $nic, for domains to have it
take_nic() {
	modprobe xen-pciback
	nic=$(devices class 0x020000)
	check assignable-add xl pci-assignable-add $nic
}

# driving NAME [LINE...]: a driver domain's configuration
driving() {
	config "$1" 'ramdisk="/guest/driver.cpio"' 'memory=256' 'driver_domain=1' \
		"extra='$kernel_args oops=panic iommu=soft swiotlb=4096 tandem.do=pci+drive'" "${@:2}"
}

# serve_network NAME NIC DRIVER [LINE...]: a driver domain comes up, has the NIC in its bridge, and serves guests
serve_network() {
	local out
	driving $1 "pci=['$2,permissive=1']" "${@:4}"
	boot $1 || return 1
	out=$(in_guest $1 150 "job_backend $3")
	echo "$out" | grep -q 'bridge ok' || { echo "$out"; return 1; }
}

# behind NAME DOMAIN LAST [LINE...]: configuration of a guest, 10.9.0.LAST, whose interface the driver domain serves
behind() {
	config $1 "vif=['mac=00:16:3e:00:00:0$3,backend=$2,bridge=xenbr0,script=vif-plug']" "${@:4}"
}

# plugged NAME [DEVICE]: the driver domain has the guest's interface in its bridge, or the disk DEVICE open; the hotplug
# script takes its time there
plugged() {
	local path
	path=$(xenstore-read /local/domain/$(xl domid $1)/device/${2:-vif/0}/backend) || return 1
	wait_for 60 grep_node $path/hotplug-status connected && return
	xenstore-ls $path
	return 1
}
grep_node() { [ "$(xenstore-read $1)" = "$2" ]; }

# no_dma_stopped [BUT]: no device tried to access what it may not; lines that match BUT do not count
no_dma_stopped() { ! xl dmesg | grep -E 'was stopped|were stopped|DMAR:.*fault addr' | grep -vE "${1:-^$}"; }

# audit: the hypervisor recounts all frames (not on stock Xen, which cannot)
audit() {
	xl info | grep -q '^xen_extra.*tandem' || return 0
	xl debug-keys f
	xl dmesg | grep 'Frame audit:' | tail -n 1 | tee /tmp/audit
	grep -q ' 0 wrong, 0 lost' /tmp/audit
}
