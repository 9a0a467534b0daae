# hostile.sh OPERATIONS SEED [device]: two hostile domains of three vCPUs, each with the other as its peer, do that many random
# operations on the first of them, and what they can on the others, beside dom0 and a guest that checks its memory. One that
# has ended itself goes on behind the operations that did it. With `device` the first of them owns one whose DMA it can send anywhere. The second one goes on for a while when the first has
# gone, with a peer that is dying and stays as long as it maps its memory.
. /xen/driving.sh
operations=$1
seed=$2
device=$3
reports() { tr -d '\r' < $logs/guest-w1.log | grep -ac 'TANDEM: memcheck round='; }
more_reports() { [ $(reports) -gt $1 ]; }
memory_is_right() {
	wait_for 60 more_reports $(($(reports) + 1)) || { tail -n 3 $logs/guest-w1.log; return 1; }
	tr -d '\r' < $logs/guest-w1.log | grep -a 'TANDEM: memcheck' | tail -n 1 | tee /tmp/memcheck
	grep -q ' wrong=0 ' /tmp/memcheck
}
witness() { config w1 && boot w1 && in_guest w1 20 'memcheck 16 20 &' && memory_is_right; }

# What the domain is told of its device, and the device's memory and bus mastering switched on.
describe() {
	local dir=/sys/bus/pci/devices/$edu range bus
	range=$(head -n 1 $dir/resource)
	bus=${edu#*:}
	set -- $range
	echo "bar=$(($1 >> 12)) bar_pages=$((($2 + 1 - $1) >> 12)) gsi=$gsi bdf=$((0x${bus%%:*} << 8 | 0x${bus:3:2} << 3 | ${bus:6:1}))"
}
enable() { printf '\006\000' | dd of=/sys/bus/pci/devices/$edu/config bs=1 seek=4 conv=notrunc 2> /dev/null; }

# Each has its own: with the same one both would do the same at the same time.
seed_of() { if [ $1 = h2 ]; then echo $((seed + 1000000007)); else echo $seed; fi; }
operations_of() { if [ $1 = h2 ]; then echo $((operations + 20000)); else echo $operations; fi; }

# Domids are given in turn.
start() { # NAME PEER FIRST
	local more= pci=
	last=$((last + 1))
	if [ -n "$device" ] && [ $1 = h1 ]; then
		more=" $(describe)"
		pci="pci=['$edu,permissive=1']"
	fi
	cat > /tmp/$1.cfg <<X
type="pv"
name="$1"
kernel="/guest/hostile-domain"
memory=32
vcpus=3
on_poweroff="destroy"
on_reboot="destroy"
on_crash="destroy"
extra="seed=$(seed_of $1) first=$3 operations=$(operations_of $1) self=$last peer=$2$more"
$pci
X
	xl create -p /tmp/$1.cfg > /tmp/$1.create 2>&1 || { cat /tmp/$1.create; return 1; }
	[ "$(xl domid $1)" = $last ] || { echo "its domid is not $last"; return 1; }
	[ -z "$pci" ] || enable
	xl unpause $1
}
done_by() { tr -d '\r' < $logs/guest-$1.log 2> /dev/null | sed -n 's/^  done \([0-9]*\),.*/\1/p' | tail -n 1; }
verdict_of() { tr -d '\r' < $logs/guest-$1.log 2> /dev/null | sed -n 's/^Test hostile-domain: \([A-Z].*\)/\1/p' | tail -n 1; }

# Of all their vCPUs, up to the last report of each.
all_operations() {
	local log sum=0 n
	for log in $logs/guest-h[12].log $logs/guest-h[12].[0-9]*; do
		n=$(tr -d '\r' < $log 2> /dev/null | sed -n 's/^  done .* all vCPUs \([0-9]*\)$/\1/p' | tail -n 1)
		sum=$((sum + ${n:-0}))
	done
	echo $sum
}
# did_enough: no report is of less than 10 000 operations, and what one that has ended itself did since the last one is left out, with as many after that
did_enough() {
	local all=$(all_operations) deaths=$(cat /tmp/deaths)
	echo "$all operations of all vCPUs, $deaths deaths"
	[ $all -ge $((2 * operations - 20000 * deaths)) ]
}

deaths=0
run() {
	local name open="h1 h2" still first number silent=0 before=none now
	rm -f $logs/guest-h1.log $logs/guest-h2.log
	start h1 $((last + 2)) 0 && start h2 $last 0 || return 1
	while [ -n "$open" ]; do
		sleep 2
		still=
		now=
		for name in $open; do
			now="$now $name: $(done_by $name)"
			if xl domid $name > /dev/null 2>&1; then still="$still $name"; continue; fi
			case $(verdict_of $name) in
			SUCCESS) continue ;;
			FAILURE) grep -a failed: $logs/guest-$name.log; return 1 ;;
			esac
			deaths=$((deaths + 1))
			first=$(done_by $name)
			echo "TANDEM: $name ended itself behind operation ${first:-0}: $(tail -n 5 $logs/guest-$name.log | tr -d '\r' | tr '\n' ' ')" > /dev/console
			[ $deaths -le $((5 + operations / 20000)) ] || { echo "too many deaths"; return 1; }
			# Reports come each 10 000 operations.
			first=$((${first:-0} + 10000))
			[ $first -lt $(operations_of $name) ] || continue
			mv $logs/guest-$name.log $logs/guest-$name.$deaths
			start $name $last $first || return 1
			still="$still $name"
		done
		open=$still
		if [ "$now" = "$before" ]; then silent=$((silent + 1)); else silent=0; echo "TANDEM: hostile$now" > /dev/console; fi
		before=$now
		[ $silent -lt 150 ] || { echo "nothing happens any more"; return 1; }
	done
	echo $deaths > /tmp/deaths
}

if [ -n "$device" ]; then
	modprobe xen-pciback
	edu=$(devices device 0x11e8)
	check its-device-is-assignable xl pci-assignable-add $edu || exit
	# Before a driver has switched the device on, another number is there.
	gsi=$(cat /sys/bus/pci/devices/$edu/irq)
fi
check a-guest-checks-its-memory witness || exit
audit > /dev/null
last=$(xl domid w1)
remember
check hostile-domains-are-refused-what-they-may-not run
say "ended themselves $(cat /tmp/deaths) times; $(all_operations) operations of all vCPUs"
check they-did-all-of-them did_enough
[ -z "$device" ] || say "$(grep -a 'was told to copy' $logs/guest-h1.log | tr -d '\r')"
for name in h1 h2; do xl destroy $name 2> /dev/null; done
check the-guest-goes-on memory_is_right
check frames-are-accounted-for audit
check nothing-stays nothing_stays
check destroy eval 'xl destroy w1 && gone w1'
