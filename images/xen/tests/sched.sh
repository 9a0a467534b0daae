# Shares, caps, wake-ups and answers of guests that compete for one CPU. Meant for a machine whose time is counted in instructions,
# so that other work on the host does not matter; the hypervisor's own figures (debug key r) are to the nanosecond.
figures() { xl dmesg -c > /dev/null; xl debug-keys r; xl dmesg > /tmp/figures; }
# ran NAME, wakes NAME, late NAME: of the guest's first vCPU, by the last figures
field_of() { sed -n "s/.* d$(xl domid $1)v0: $2.*/\1/p" /tmp/figures; }
ran() { field_of $1 'weight .* ran \([0-9]*\) ns'; }
wakes() { field_of $1 '\([0-9]*\) wakes'; }
late() { field_of $1 '[0-9]* wakes, \([0-9]*\) of them late'; }
# near WANTED GOT PERMILLE
near() { awk "BEGIN { d = ($2 - $1) / $1 * 1000; if (d < 0) d = -d; exit !(d <= $3) }"; }
# What a check measured, for the log; `check` keeps what it prints to itself.
note() { echo "$*" > /tmp/note; }
measured() { check "$@"; say "measured $(cat /tmp/note)"; }
# times FILE: milliseconds of all answers to a ping but the slowest hundredth, and of the slowest
times() { sed -n 's/.*time=\([0-9.]*\) ms/\1/p' $1 | sort -n | awk '{ t[NR] = $1 } END { print t[NR - int(NR / 100)], t[NR] }'; }

for n in 1 2 4; do
	config busy$n
	[ $n = 4 ] && echo 'vif=["mac=00:16:3e:00:00:1e,bridge=xenbr0"]' >> /tmp/busy4.cfg
	check create-$n boot busy$n || exit
	xl sched-credit2 -d busy$n -w $((n * 256))
done
for n in 1 2 4; do check busy-$n in_guest busy$n 30 '(while :; do :; done) & busy=$!'; done
sleep 1

shares() {
	local n sum=0 a b
	figures
	for n in 1 2 4; do eval "a$n=$(ran busy$n)"; done
	sleep 8
	figures
	for n in 1 2 4; do eval "b$n=$(($(ran busy$n) - a$n))"; sum=$((sum + b$n)); done
	echo "ran $b1 $b2 $b4 ns"
	note "shares $((b1 * 1000 / sum)) $((b2 * 1000 / sum)) $((b4 * 1000 / sum)) of 143 286 571"
	for n in 1 2 4; do eval "near $((sum * n / 7)) \$b$n 30" || return 1; done
}
measured shares-follow-weights-within-3-percent shares

# One of them has nothing to do any more but to answer, beside two that are busy.
idle() { in_guest busy4 60 'kill $busy; job_address 30' && xl sched-credit2 -d busy4 -w 256; }
check one-becomes-interactive idle || exit

# while_counting GUEST COMMAND...: the wakes of GUEST meanwhile, and how many of them took longer than 50 microseconds
while_counting() {
	local name=$1 before_wakes before_late
	shift
	figures
	before_wakes=$(wakes $name)
	before_late=$(late $name)
	"$@" || return 1
	figures
	all=$(($(wakes $name) - before_wakes))
	slow=$(($(late $name) - before_late))
}
# rarely WAKES: there were so many, and at most one in a hundred was late
rarely() { [ $all -ge $1 ] && [ $((slow * 100)) -le $all ]; }

naps() { in_guest busy4 120 'nap 5000 1000' > /tmp/nap; }
woken() {
	while_counting busy4 naps || return 1
	note "wakes $all late=$slow; the guest: $(grep -a -o 'wakes=.*' /tmp/nap)"
	cat /tmp/note
	[ $all -ge 1000 ] && [ "$(sed -n 's/.*p99_us=\([0-9]*\).*/\1/p' /tmp/nap)" -lt 2000 ]
}
measured an-interactive-guest-is-late-by-less-than-2-ms woken

pings() { ping -i 0.01 -c 500 10.9.0.30 > /tmp/ping; }
answers() {
	while_counting busy4 pings || return 1
	note "answers $(grep -c time= /tmp/ping), 99 of 100 and the last within $(times /tmp/ping) ms; wakes $all late=$slow"
	cat /tmp/note
	[ $(grep -c time= /tmp/ping) = 500 ] && awk "BEGIN { exit !($(times /tmp/ping | cut -d' ' -f1) < 2) }"
}
measured an-interactive-guest-answers-pings-within-2-ms answers

# The guest's packets go out by dom0's NIC, which interrupts for each answer.
calls() { in_guest busy4 60 'ping -i 0.01 -c 300 10.9.0.1 > /dev/null'; }
interrupts() {
	local before=$(awk '/ eth0$/ { print $2 }' /proc/interrupts)
	while_counting Domain-0 calls || return 1
	before=$(($(awk '/ eth0$/ { print $2 }' /proc/interrupts) - before))
	note "interrupts of the NIC $before; wakes of dom0 $all late=$slow"
	cat /tmp/note
	rarely 300 && [ $before -ge 250 ]
}
measured an-interrupt-wakes-dom0-within-50-microseconds interrupts

# The same for a domain that drives the NIC itself. The busy ones make way while it boots.
modprobe xen-pciback
nic=$(grep -l '^0x020000' /sys/bus/pci/devices/*/class | cut -d/ -f6)
given() {
	xl destroy busy4 && xl pause busy1 && xl pause busy2 && xl pci-assignable-add $nic || return 1
	config driver 'ramdisk="/guest/driver.cpio"' 'memory=256' 'driver_domain=1' "pci=['$nic,permissive=1']" \
		"extra='$kernel_args iommu=soft swiotlb=4096 tandem.do=pci+drive'"
	boot driver && in_guest driver 60 'modprobe e1000; wait_for 10 test -e /sys/class/net/eth0' &&
		in_guest driver 60 'ifconfig eth0 10.9.0.2 netmask 255.255.255.0 up; wait_for 15 ping -c 1 -W 1 10.9.0.1' &&
		xl unpause busy1 && xl unpause busy2
}
check a-driver-domain-gets-the-nic given || exit
packets() { in_guest driver 60 'ping -i 0.01 -c 300 10.9.0.1 > /dev/null'; }
driven() {
	while_counting driver packets || return 1
	note "wakes $all late=$slow"
	cat /tmp/note
	rarely 300
}
measured an-interrupt-wakes-a-driver-domain-within-50-microseconds driven

capped() {
	local before now start
	xl destroy busy1
	xl destroy driver
	xl sched-credit2 -d busy2 -c 30
	figures
	before=$(ran busy2)
	start=$(cut -d' ' -f1 /proc/uptime)
	sleep 5
	figures
	now=$(awk "BEGIN { print int(($(cut -d' ' -f1 /proc/uptime) - $start) * 1e9) }")
	note "capped $((($(ran busy2) - before) * 1000 / now)) of 300"
	near $((now * 3 / 10)) $(($(ran busy2) - before)) 50
}
measured a-cap-holds-on-an-idle-machine capped
xl destroy busy2
