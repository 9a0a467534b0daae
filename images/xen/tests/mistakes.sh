# Configurations that cannot work: an error in words, and nothing stays of the domain.
ports() { lsevtchn 0 | wc -l; }
nothing_stays() {
	local list=$(xl list | tail -n +3)
	[ -z "$list" ] || { echo "a domain stays: $list"; return 1; }
	xenstore-ls -f | grep -E '^/local/domain/[1-9]|^/libxl/[1-9]|/(vif|vbd)/[1-9]' && return 1
	wait_for 20 eval '[ "$(ports)" = "$ports" ] && [ "$(free_kib)" -ge "$free" ]' && return
	echo "free $free KiB before, $(free_kib) now; event channels $ports before, $(ports) now"
	return 1
}

# refused NAME WORDS LINE...: a guest with these lines is refused, with these words
refused() {
	local words=$1
	shift
	config bad "$@"
	if xl create /tmp/bad.cfg > /tmp/bad.out 2>&1; then
		xl destroy bad
		echo "it was created"
		return 1
	fi
	grep -qiE "$words" /tmp/bad.out || { cat /tmp/bad.out; return 1; }
	nothing_stays
}

echo 'this is not a kernel' > /tmp/text
head -c 1000000 /guest/vmlinux > /tmp/half
cp /bin/busybox /tmp/program
# The first ones make what stays for good, such as empty folders in xenstore and tables that have grown.
config first 'kernel="/none"'
xl create /tmp/first.cfg > /dev/null 2>&1
config first 'vif=["bridge=xenbr0"]'
xl create -p /tmp/first.cfg > /dev/null 2>&1 && xl destroy first && gone first
free=$(free_kib)
ports=$(ports)

check no-kernel refused 'no such file|cannot|failed to open|does not exist' 'kernel="/guest/none"'
check a-text-as-kernel refused 'no loader|not.*recogni|invalid kernel|find_loader|xc_dom' 'kernel="/tmp/text"'
check half-a-kernel refused 'xc_dom|libxl: error' 'kernel="/tmp/half"'
check a-program-as-kernel refused 'xc_dom|libxl: error' 'kernel="/tmp/program"'
check no-ramdisk refused 'no such file|cannot|failed to open|does not exist' 'ramdisk="/guest/none"'
check more-memory-than-there-is refused 'not enough memory|failed to free memory|memory' 'memory=100000'
check less-memory-than-the-kernel-needs refused 'xc_dom|libxl: error' 'memory=16'
check no-bridge refused 'bridge|vif-bridge|hotplug' 'vif=["bridge=nobridge"]'
check no-disk refused 'no such file|failed to stat|does not exist|hotplug|block' 'disk=["format=raw,vdev=xvda,access=rw,target=/none"]'
check a-word-that-xl-does-not-know refused 'config parsing error|syntax error' 'memory='
same_name() {
	config bad
	xl create -p /tmp/bad.cfg > /dev/null 2>&1 || return 1
	xl create -p /tmp/bad.cfg > /tmp/bad.out 2>&1 && return 1
	grep -qi 'exists' /tmp/bad.out || { cat /tmp/bad.out; return 1; }
	xl destroy bad && gone bad && nothing_stays
}
check a-name-that-is-taken same_name
check a-domain-that-is-not-there sh -c 'xl destroy nobody 2>&1 | grep -q "invalid domain" && ! xl pause nobody 2> /dev/null && ! xl shutdown nobody 2> /dev/null'
claims() { xl info | sed -n 's/^outstanding_claims *: //p'; }
# All but so many MiB is claimed for one domain: another that needs more is refused, until the first one goes.
claimed() {
	local left=300 most
	most=$((free / 1024 - left))
	config holder
	config bad "memory=$((left + 100))"
	xl create -p /tmp/holder.cfg > /tmp/bad.out 2>&1 || { cat /tmp/bad.out; return 1; }
	xl mem-max holder $most || return 1
	claim $(xl domid holder) $((most * 256)) || return 1
	claim $(xl domid holder) $((most * 256 + 1)) 2> /dev/null && { echo "a second claim is taken"; return 1; }
	[ "$(claims)" -ge $((most - 140)) ] || { echo "$(claims) MiB claimed of $most"; return 1; }
	xl create -p /tmp/bad.cfg > /tmp/bad.out 2>&1 && { echo "claimed memory is given away"; return 1; }
	grep -qi memory /tmp/bad.out || { cat /tmp/bad.out; return 1; }
	xl destroy holder && gone holder || return 1
	[ "$(claims)" = 0 ] || { echo "$(claims) MiB stay claimed"; return 1; }
	xl create -p /tmp/bad.cfg > /tmp/bad.out 2>&1 || { cat /tmp/bad.out; return 1; }
	xl destroy bad && gone bad && nothing_stays
}
check memory-that-is-claimed-for-another claimed
check afterwards-a-good-one-works eval 'config good && boot good && xl destroy good && gone good && nothing_stays'
