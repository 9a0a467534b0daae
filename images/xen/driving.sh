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

# What spares a kernel time when it boots: tests of all its ciphers, and files for who traces it.
quick_args='cryptomgr.notests initcall_blacklist=tracer_init_tracefs apparmor=0'

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

# no_dma_stopped [BUT]: no device tried to access what it may not; lines that match BUT do not count. Of a long test these are the last
# lines; whoever judges the log sees all.
no_dma_stopped() {
	xl dmesg > /tmp/dmesg || return 1
	! grep -E 'was stopped|were stopped|DMAR:.*fault addr' /tmp/dmesg | grep -vE "${1:-^$}"
}

# audit: the hypervisor recounts all frames (not on stock Xen, which cannot). What is lost is counted from the first time on.
audit() {
	local status info
	info=$(xl info) || { echo "$info"; return 1; }
	grep -q '^xen_extra.*tandem' <<< "$info" || return 0
	xl debug-keys f
	status=$?
	xl dmesg | grep 'Frame audit:' | tail -n 1 | tee /tmp/audit
	# If it has not recounted, that line is an earlier one.
	[ $status = 0 ] && grep -q ' 0 wrong, 0 lost' /tmp/audit
}
# remember_frames: what is free, in use and the hypervisor's own now, for nothing_stays and later audits
remember_frames() {
	audit > /dev/null
	remember
}

# small NAME JOB [LINE...]: configuration of a small driver domain that does this job: see docs/toolstack.md for what it is told
small() {
	config $1 "ramdisk=\"/guest/small-${2#*:}.cpio\"" 'memory=88' 'driver_domain=1' \
		"extra='$kernel_args oops=panic iommu=soft swiotlb=512 coherent_pool=16K cgroup_disable=memory cgroup.memory=nokmem ipv6.disable=1 apparmor=0 audit=0 nowatchdog tsc=nowatchdog sysctl.vm.compaction_proactiveness=0 sysctl.net.ipv4.neigh.default.interval_probe_time_ms=3600000 sysctl.vm.min_free_kbytes=320 psi=0 transparent_hugepage=never initcall_blacklist=tracer_init_tracefs,btf_vmlinux_init,btf_module_init,init_zswap,slab_sysfs_init,unpopulated_init tandem.do=$2+keep:48'" \
		"${@:3}"
}

# held NAME: so many pages has the domain, says the hypervisor
held() {
	xl debug-keys m || return
	xl dmesg | sed -n "s/.*  d$(xl domid $1): \([0-9]*\) of [0-9]* pages.*/\1/p" | tail -n 1
}

# memory_of NAME: what a small driver domain's Linux has
memory_of() {
	local told
	told=$(in_guest $1 30 tell) || { echo "$told"; return 1; }
	echo $(echo "$told" | sed -n 's/^\(MemTotal\|MemFree\|Slab\|Shmem\|KernelStack\): *\([0-9]*\) kB/\1=\2/p')
}

# ticks_of NAME: for how many seconds a small driver domain has run, and how often its timer has interrupted it
ticks_of() { in_guest $1 30 tell | sed -n 's/^\([0-9]*\)\.[0-9]* [0-9.]*$/\1/p; s/^ *[0-9]*: *\([0-9]*\) .*timer0.*/\1/p' | tr '\n' ' ' | sed 's/ $//'; }
