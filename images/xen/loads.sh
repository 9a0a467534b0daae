# For bash in dom0, after lib.sh: what the machines of `./tandem bench net`, `disk`, `files`, `twin-net` and `scaling` have in common.
quit() {
	say "load FAIL $1"
	tail -n 5 /tmp/out $logs/guest-*.log
	exit
}
# drives LINE COMMAND [LINE]: a driver domain gets the device of $class, whose driver is $driver, and does that
drives() {
	. /xen/driving.sh
	modprobe xen-pciback
	function=$(devices class $class)
	xl pci-assignable-add $function > /tmp/out 2>&1 || quit "the device cannot leave dom0"
	driving driver "pci=['$function,permissive=1']" 'tsc_mode="native"' "$1" "${@:3}"
	boot driver > /tmp/out 2>&1 || quit "no driver domain"
	in_guest driver 150 "$2" > /tmp/out 2>&1 || quit "the driver domain does not serve"
	in_guest driver 10 'job_modules driver'
}
# switches switch|mirror|stlb: guests' disks or, by $kind, the hypervisor's switch, with a driver domain behind it, or with the twin of its $driver in
# that mode
switches() {
	. /xen/switching.sh
	way_out driver
	if [ "$class" = 0x0108 ]; then
		printf '[service.disk]\nkind = "disk"\ndriver-domain = "driver"\n' > /etc/tandem/tandemd.toml
		daemon_starts > /tmp/out 2>&1 || quit "no service of disks"
		drives '' "job_backend $driver"
		return
	fi
	daemon_starts > /tmp/out 2>&1 || quit "no switch"
	# Nobody but twins has the CPUs that come beside the first, as many as the machine has.
	drives "$(plug 2)" "bridge_switch $driver" "maxvcpus=$(($(xl info nr_cpus) + 1))"
	if [ $1 != switch ]; then
		in_guest driver 60 "job_twin_module; job_twind --interface eth0 --mode twin-$1" > /tmp/out 2>&1
		attached() { in_guest driver 10 'tail -n 1 /tmp/twind' > /tmp/out 2>&1; grep -q '^twind: attached' /tmp/out; }
		wait_for 120 attached || quit "the twin does not get the card"
	fi
}
