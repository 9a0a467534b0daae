# deaths.sh ROUNDS: guests die in the middle of their traffic, or half built, while another's traffic goes on and is checked.
rounds=${1:-1}
. /xen/driving.sh
free_kib() { hvmem 0 | sed 's/.*free_kib=\([0-9]*\).*/\1/'; }
ports() { lsevtchn 0 | wc -l; }
tcptest serve > /dev/null 2>&1 &
for disk in victim read written; do truncate -s 4M /tmp/$disk; done
dd if=/dev/urandom of=/tmp/read bs=1M count=4 conv=notrunc 2> /dev/null
losetup /dev/loop0 /tmp/victim
losetup -r /dev/loop1 /tmp/read
losetup /dev/loop2 /tmp/written
# Short scripts: what the stock ones do is for `devices` to check.
vif() { echo "vif=['mac=00:16:3e:00:00:0$1,bridge=xenbr0,script=vif-plug']"; }
disk() { echo "'format=raw,vdev=$1,access=$2,script=disk-plug,target=$3'"; }
config w1 "$(vif 4)" "disk=[$(disk xvda ro /dev/loop1),$(disk xvdb rw /dev/loop2)]"
config v1 'vcpus=2' 'on_crash="destroy"' "$(vif 3)" "disk=[$(disk xvda rw /dev/loop0)]"
# backends [DOMID]: of that domain, or of all
backends() { ls /sys/bus/xen-backend/devices | grep -E "^v(if|bd)-$1"; }

check frames-are-accounted-for audit || exit
account() { xl debug-keys m; xl debug-keys g; } # to the console: where memory is
account
free=$(free_kib)
ports=$(ports)

# The witness: streams out and in, reads a disk that dom0 filled, writes another and reads it back; stops at the first mistake.
witness() {
	boot w1 && xenstore-read /local/domain/$(xl domid w1)/console/tty > /tmp/w1.tty && in_guest w1 40 "job_address 4; modprobe xen-blkfront; wait_for 10 test -b /dev/xvdb; (tcptest serve > /dev/null 2>&1 &); echo '$(sha256sum < /tmp/read)' > /tmp/sum" || return 1
	in_guest w1 10 'one_round() { dd if=/dev/urandom of=/tmp/new bs=64k count=16 2> /dev/null; tcptest get 10.9.0.1 1 && tcptest put 10.9.0.2 1 && [ "$(dd if=/dev/xvda bs=64k iflag=direct 2> /dev/null | sha256sum)" = "$(cat /tmp/sum)" ] && dd if=/tmp/new of=/dev/xvdb bs=64k oflag=direct 2> /dev/null && dd if=/dev/xvdb bs=64k count=16 iflag=direct 2> /dev/null | cmp - /tmp/new; }; n=0; (until [ -e /tmp/stop ]; do while [ -e /tmp/pause ]; do usleep 200000; done; one_round || break; n=$((n + 1)); echo "TANDEM: round $n" > /dev/console; done; echo stopped) > /tmp/work 2>&1 &'
}
work() { in_guest w1 20 'tail -n 3 /tmp/work'; }
done_rounds() { grep -ac 'TANDEM: round' $logs/guest-w1.log; }
# Without waiting for an answer.
tell_witness() { echo "0 $*" > $(cat /tmp/w1.tty); }
further() { [ "$(done_rounds)" -ge $1 ]; }
# A whole round since now, which began after what was before.
goes_on() { wait_for 120 further $(($(done_rounds) + 2)) || { work; return 1; }; }

moving() { [ "$(cat /sys/class/net/vif$1.0/statistics/rx_bytes)" -gt 300000 ] && [ "$(cat /sys/bus/xen-backend/devices/vbd-$1-51712/statistics/wr_sect)" -gt 1000 ]; }
# The witness rests while the victim is made: on a busy machine hotplug scripts have little enough of their 40 seconds.
victim() {
	tell_witness touch /tmp/pause
	boot v1 && in_guest v1 40 'job_address 3; modprobe xen-blkfront; modprobe xen-privcmd unrestricted=1; wait_for 10 test -b /dev/xvda' || return 1
	in_guest v1 10 '(while :; do tcptest put 10.9.0.4 2; tcptest get 10.9.0.1 2; done) > /dev/null 2>&1 & (while :; do dd if=/dev/zero of=/dev/xvda bs=64k oflag=direct; dd if=/dev/xvda of=/dev/null bs=64k iflag=direct; done) > /dev/null 2>&1 &'
	tell_witness rm /tmp/pause
	wait_for 60 moving $(xl domid v1) || { echo "the victim moves nothing"; return 1; }
	wait_for 60 further $(($(done_rounds) + 1)) || { work; return 1; }
}
no_devices_stay() { wait_for 30 eval '! backends && ! ls /sys/class/net | grep -q "vif[0-9]*[.]"' || { backends; ls /sys/class/net; return 1; }; }
dies() { # dies COMMAND: the victim's end, in the middle of its traffic
	victim || { tell_witness rm -f /tmp/pause; return 1; }
	local id=$(xl domid v1)
	eval "$1"
	gone v1 60 && wait_for 30 eval "! backends $id- && ! ls /sys/class/net | grep -q 'vif$id[.]'" && return
	# What else is checked should not depend on this one.
	xl debug-keys d
	tail -n 20 $logs/guest-v1.log > /dev/console
	xl destroy v1
	echo "it goes on living: $(xl list | tail -n 2 | tr '\n' ';') $(backends | tr '\n' ' ')"
	return 1
}
# Debian's kernel does not take that key as it is, and its privcmd makes no hypercalls in a guest unless it is told to.
panic() { in_guest v1 20 'echo 1 > /proc/sys/kernel/sysrq' && xl sysrq v1 c; }
by_itself() { echo "1 crash" > $(xenstore-read /local/domain/$(xl domid v1)/console/tty); }

settled() { # as before
	for i in 1 2 3 4 5 6 7 8 9 10; do
		[ "$(ports)" = "$1" ] && [ "$(free_kib)" -ge "$2" ] && return
		sleep 1
	done
	account
	echo "free $2 KiB before, $(free_kib) now; event channels $1 before, $(ports) now"
	return 1
}

# The tools are killed at different moments of a creation; what they leave is destroyed.
all_but() { xl list | awk -v keep="$1" 'NR > 1 && $2 != 0 && $2 != keep { print $2 }'; }
time_to_create() {
	local start=$(cut -d' ' -f1 /proc/uptime)
	xl create -p /tmp/v1.cfg > /tmp/create 2>&1 || { cat /tmp/create; return 1; }
	echo "$start $(cut -d' ' -f1 /proc/uptime)" | awk '{ print int(($2 - $1) * 1000000) }' > /tmp/us
	xl destroy v1 && gone v1
}
killed() { # killed PART: after so many eighths of the time that it takes
	local keep=$(xl domid w1) pid id
	tell_witness touch /tmp/pause
	xl create -p /tmp/v1.cfg > /tmp/create 2>&1 &
	pid=$!
	usleep $(($(cat /tmp/us) * $1 / 8))
	kill -9 $pid 2> /dev/null
	wait $pid
	tell_witness rm /tmp/pause
	# Scripts that it had started come to their end.
	wait_for 60 eval '! ps | grep -q "[s]cripts/\(disk\|vif\)"' || { ps; return 1; }
	echo "TANDEM: killed at $1/8, left $(all_but $keep | tr '\n' ' ')" > /dev/console
	for id in $(all_but $keep); do xl destroy $id; done
	wait_for 30 eval "[ -z \"\$(all_but $keep)\" ]" || { xl list; return 1; }
}

check the-other-guest-works witness || exit
check its-traffic-goes-on goes_on
check destroyed-in-traffic dies 'xl destroy v1'
check the-other-goes-on goes_on
account
with_witness=$(free_kib)
ports_with_witness=$(ports)
for round in $(seq $rounds); do
	[ $round = 1 ] || check destroyed-again dies 'xl destroy v1'
	check panics-in-traffic dies panic
	check crashed-by-the-hypervisor dies by_itself
	check the-other-goes-on goes_on
done
check nothing-stays settled $ports_with_witness $with_witness
check create-and-destroy time_to_create
for part in 1 2 3 4 5 6 7; do check tools-killed-at-$part-of-8 killed $part; done
check the-other-goes-on goes_on
only_its_own() { [ "$(backends | wc -l)" = 3 ] || { backends; return 1; }; }
check no-device-of-theirs-stays wait_for 30 only_its_own
check nothing-stays settled $ports_with_witness $with_witness
stopped() { in_guest w1 60 'touch /tmp/stop; wait_for 50 grep -q stopped /tmp/work; ! grep -iE "fail|differ|refused" /tmp/work'; }
check the-other-made-no-mistake stopped
check shutdown-of-the-other eval 'timeout 60 xl shutdown -w w1; gone w1'
check no-devices-stay no_devices_stay
check frames-are-accounted-for audit
check all-is-as-before settled $ports $free
