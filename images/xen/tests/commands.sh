# Every command of xl that a guest without devices can show, by its effect.
mib_free() { xl info | sed -n 's/^free_memory *: *//p'; }
state() { xl list $1 | tail -n 1 | awk '{ print $5 }'; }
list_field() { xl list $1 | tail -n 1 | awk "{ print \$$2 }"; }
between() { [ "$1" -ge "$2" ] && [ "$1" -le "$3" ]; }

info() {
	[ "$(xl info | sed -n 's/^nr_cpus *: *//p')" = "$(ls -d /sys/devices/system/xen_cpu/xen_cpu* | wc -l)" ] || return 1
	xl info | grep -q '^xen_version *: 4\.17' && xl info | grep -q '^xen_caps *: xen-3.0-x86_64' &&
		between "$(xl info | sed -n 's/^total_memory *: *//p')" 2900 3072
}
check info info
check list-shows-dom0 sh -c 'xl list | grep -q "^Domain-0 *0 *1024"'
check cpupool-list sh -c 'xl cpupool-list | grep -q "Pool-0.*credit2.*y.*1"'
check dmesg sh -c 'xl dmesg | grep -qi "dom0\|d0"'
# Debian's XENCONSOLED_TRACE=hv: another one, as long as there is no guest about which the two would quarrel.
hypervisor_log() {
	local pid had n
	mkdir -p /tmp/hv-log
	xenconsoled --log=hv --log-dir=/tmp/hv-log --pid-file=/tmp/hv-log/pid > /dev/null 2>&1 || return 1
	wait_for 10 test -s /tmp/hv-log/pid -a -s /tmp/hv-log/hypervisor.log || { ls -l /tmp/hv-log; return 1; }
	pid=$(cat /tmp/hv-log/pid)
	for n in 1 2; do
		# It reads what there is, and then only when it is told.
		nap 1
		had=$(grep -c "'h' pressed" /tmp/hv-log/hypervisor.log)
		xl debug-keys h
		wait_for 10 eval "[ \$(grep -c \"'h' pressed\" /tmp/hv-log/hypervisor.log) -gt $had ]" || { echo "nothing came, time $n"; break; }
		had=
	done
	kill $pid && wait_for 10 eval "! [ -e /proc/$pid ]" && [ -z "$had" ]
}
check hypervisor-log hypervisor_log
check xenstore-ls sh -c 'xenstore-ls /local/domain/0 | grep -q "name = \"Domain-0\""'

remember
free=$(mib_free)
config g1 'vcpus=2' 'maxvcpus=4' 'maxmem=192'
check create boot g1 || exit
id=$(xl domid g1)
check info-memory-was-taken between $((free - $(mib_free))) 128 140
check list eval '[ "$(list_field g1 3) $(list_field g1 4)" = "128 2" ]'
check list-long sh -c "xl list -l g1 | grep -q '\"domid\": $id'"
same domid-and-domname g1 "$(xl domname $id)"
check vcpu-list eval '[ $(xl vcpu-list g1 | grep -c "^g1 ") = 4 ] && [ $(xl vcpu-list g1 | grep -c -- "--p") = 2 ]'
check xenstore-ls-of-a-guest sh -c "xenstore-ls /local/domain/$id | grep -q 'name = \"g1\"'"
check uptime sh -c "xl uptime g1 | grep -q 'g1 .* 0:0'"
check top sh -c 'xentop -b -i 1 | grep -q "^ *g1 "'

# Without a terminal of its own it only shows what the guest says; the pty is the way in.
shown() {
	timeout 30 xl console g1 > /tmp/shown &
	sleep 1
	in_guest g1 10 'echo shown-$((20 + 22))'
	wait_for 20 grep -q shown-42 /tmp/shown
}
check console shown

paused() {
	local log=$logs/guest-g1.log
	xl pause g1 || return 1
	case $(state g1) in *p*) ;; *) echo "state $(state g1)"; return 1 ;; esac
	echo "p1 true" > $(xenstore-read /local/domain/$id/console/tty)
	local time=$(list_field g1 6)
	sleep 2
	! grep -q "TANDEM: did p1" $log || { echo "a paused guest ran"; return 1; }
	[ "$time" = "$(list_field g1 6)" ] || { echo "a paused guest used CPU time"; return 1; }
}
resumed() { xl unpause g1 && wait_for 10 grep -q "TANDEM: did p1" $logs/guest-g1.log; }
check pause paused
check unpause resumed

renamed() { xl rename g1 other && [ "$(xl domid other)" = $id ] && ! xl domid g1 2> /dev/null && xl rename other g1; }
check rename renamed

ballooned() {
	local before=$(mib_free) total
	xl mem-set g1 $1
	wait_for 20 eval "[ \$(xl list g1 | tail -n 1 | awk '{ print \$3 }') = $1 ]" || { xl list g1; return 1; }
	total=$(in_guest g1 10 "sed -n 's/MemTotal: *\([0-9]*\).*/\1/p' /proc/meminfo")
	echo "free $before -> $(mib_free), MemTotal $total KiB"
	between $(($(mib_free) - before)) $2 $3
}
check mem-set-down ballooned 96 32 32
check mem-set-up ballooned 160 -64 -64
limited() {
	xl mem-max g1 160 || return 1
	# Its configuration allowed it.
	! xl mem-set g1 176 || return 1
	[ "$(list_field g1 3)" = 160 ]
}
check mem-max limited

cpus_become() {
	xl vcpu-set --ignore-host g1 $1 || return 1
	for i in 1 2 3 4 5 6 7 8 9 10; do
		[ "$(in_guest g1 10 'for c in /sys/devices/system/cpu/cpu[1-9]; do [ $(cat $c/online) = 1 ] || echo 1 > $c/online; done 2> /dev/null; nproc' | tail -n 1)" = $1 ] && return
		usleep 300000
	done
	in_guest g1 10 nproc
	return 1
}
check vcpu-set-up cpus_become 4
check vcpu-set-down cpus_become 1
pinned() {
	xl vcpu-pin g1 0 1 || return 1
	in_guest g1 10 'i=0; while [ $i -lt 5000 ]; do i=$((i+1)); done'
	xl vcpu-list g1 | grep -q '^g1 *[0-9]* *0 *1 .* 1 / all' || { xl vcpu-list g1; return 1; }
	xl vcpu-pin g1 0 all
}
check vcpu-pin pinned
weighed() { xl sched-credit2 -d g1 -w 512 && xl sched-credit2 -d g1 | grep -q 'g1.*512'; }
check sched-credit2 weighed
check sched-credit2-parameters sh -c 'xl sched-credit2 | grep -q "Domain-0"'
# Linux shows the bytes as they are, up to the first zero.
same_build_id() {
	local id=$(xl info | sed -n 's/^build_id *: *\([0-9a-f]\{40\}\)$/\1/p')
	[ -n "$id" ] || { xl info | grep build_id; return 1; }
	case $id in $(od -An -v -tx1 /sys/hypervisor/properties/buildid | tr -d ' \n')*) return 0 ;; esac
	echo "xl says $id"
	return 1
}
check build-id same_build_id
check build-id-is-dom0s-alone said '<denied>' g1 10 'cat /sys/hypervisor/properties/buildid; echo'
check clock said 'clock ok' g1 30 clock
check sysrq eval 'xl sysrq g1 h && wait_for 20 grep -q "sysrq: HELP" $logs/guest-g1.log'
check debug-keys sh -c "xl debug-keys h && xl debug-keys q && xl dmesg | grep -q \"'q' pressed\""
# Stock Xen has other words.
interrupts() { xl debug-keys i; xl dmesg | grep -E 'd0 pirq [0-9]+, port [0-9]+|Guest interrupt information'; }
check interrupts-are-listed interrupts

check reboot sh -c ': > '$logs'/guest-g1.log; xl reboot g1'
check reboot-gives-a-new-domain eval 'serving g1 && [ $(xl domid g1) != $id ]'
stopped() { timeout 60 xl shutdown -w g1; gone g1; }
check shutdown stopped
check create-paused eval 'xl create -p /tmp/g1.cfg && sleep 1 && case $(state g1) in *p*) [ "$(list_field g1 6)" = 0.0 ] ;; *) false ;; esac'
check destroy eval 'xl destroy g1 && gone g1'
check nothing-stays nothing_stays

# A kernel as Debian packs it; a guest that crashes.
config g2 'kernel="/guest/vmlinuz"' 'on_crash="destroy"' 'rtc_timeoffset=3600'
check create-from-a-bzimage boot g2
# Between two looks at dom0's clock; seconds are cut off, and dom0 may have set its own by the RTC anew.
an_hour_ahead() {
	local before after there
	before=$(date +%s)
	there=$(in_guest g2 10 'echo "its clock $(date +%s)"' | sed -n 's/.*its clock \([0-9][0-9]*\).*/\1/p' | tail -n 1)
	after=$(date +%s)
	echo "$before here, then '$there' there, then $after here"
	[ -n "$there" ] && between $((there - 3600)) $((before - 3)) $((after + 3))
}
check rtc-timeoffset an_hour_ahead
crashed() { echo "c1 echo c > /proc/sysrq-trigger" > $(xenstore-read /local/domain/$(xl domid g2)/console/tty); gone g2; }
check on-crash-destroy crashed
check nothing-stays-after-a-crash nothing_stays
