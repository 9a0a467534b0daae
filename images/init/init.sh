# The test machine's userspace. What to do comes on the kernel's command line: tandem.do=JOB+JOB+...
# Each job says its outcome in lines that start with "TANDEM: "; the host looks for them.
[ -e /bin/mount ] || /bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs tmp /tmp
mount -t tmpfs shm /dev/shm
echo 5 > /proc/sys/kernel/printk

say() { echo "TANDEM: $*"; }

hypervisor=$(cat /sys/hypervisor/type 2>/dev/null || echo none)
say "up kernel=$(uname -r) hypervisor=$hypervisor cpus=$(nproc) uptime=$(cut -d' ' -f1 /proc/uptime)"
[ -d /proc/xen ] && mount -t xenfs xenfs /proc/xen 2>/dev/null

# wait_for SECONDS COMMAND...: until the command succeeds
wait_for() {
	tries=$(($1 * 50))
	shift
	while ! "$@" >/dev/null 2>&1; do
		tries=$((tries - 1))
		[ $tries -gt 0 ] || return 1
		usleep 20000
	done
}

job_cpus() {
	say "cpus nproc=$(nproc) present=$(cat /sys/devices/system/cpu/present) online=$(cat /sys/devices/system/cpu/online)"
}

# Every CPU does work of its own: a loop pinned to each goes on until Linux has accounted it to that CPU, for 50 ms and not for ever.
job_pin() {
	rm -f /tmp/idle
	for cpu in $(seq 0 $(($(nproc) - 1))); do
		taskset -c $cpu sh -c '
			user() { sed -n "s/^cpu$0 \([0-9]*\) .*/\1/p" /proc/stat; }
			from=$(user) rounds=0
			until [ $(($(user) - from)) -ge 5 ]; do
				rounds=$((rounds + 1))
				[ $rounds -le 200 ] || exit 1
				i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done
			done' $cpu || echo $cpu >> /tmp/idle &
	done
	wait
	[ ! -e /tmp/idle ] || { say "pin FAIL no work was done by cpu" $(sort -n /tmp/idle); return; }
	say "pin ran=$(nproc)"
}

# Each secondary CPU goes off line and comes back, three times.
job_hotplug() {
	for round in 1 2 3; do
		for dir in /sys/devices/system/cpu/cpu[1-9]*; do
			echo 0 > $dir/online || { say "hotplug FAIL ${dir##*/} does not go off line"; return; }
		done
		[ "$(nproc)" = 1 ] || { say "hotplug FAIL nproc is $(nproc) with all others off line"; return; }
		for dir in /sys/devices/system/cpu/cpu[1-9]*; do
			echo 1 > $dir/online || { say "hotplug FAIL ${dir##*/} does not come back"; return; }
		done
	done
	for cpu in $(seq 0 $(($(nproc) - 1))); do
		taskset -c $cpu true || { say "hotplug FAIL cpu$cpu runs nothing"; return; }
	done
	say "hotplug ok nproc=$(nproc)"
}

# net:DRIVER:MIB:WINDOW
job_net() {
	[ "$1" = virtio_net ] && modprobe virtio_pci
	modprobe "$1" || { say "net FAIL modprobe $1"; return; }
	wait_for 10 sh -c 'ls /sys/class/net | grep -q eth' || { say "net FAIL no interface from $1"; return; }
	bound=$(basename "$(readlink /sys/class/net/eth0/device/driver)")
	say "module $1 bound=$bound"
	ifconfig eth0 10.9.0.2 netmask 255.255.255.0 up
	wait_for 15 grep -q 1 /sys/class/net/eth0/carrier || { say "net FAIL no carrier"; return; }
	wait_for 15 ping -c 1 -W 1 10.9.0.1 || { say "net FAIL no answer to ping"; return; }
	say "$(nettest eth0 10.9.0.1 "$2" "$3")"
	errors=0
	for f in rx_errors tx_errors rx_dropped tx_dropped rx_crc_errors; do
		errors=$((errors + $(cat /sys/class/net/eth0/statistics/$f)))
	done
	line=$(grep -E 'eth0|virtio.*(in|out)put' /proc/interrupts | head -n 1)
	say "interface queue=$(ip link show eth0 | sed -n 's/.* qdisc \([^ ]*\).*/\1/p') errors=$errors rx=$(cat /sys/class/net/eth0/statistics/rx_packets) tx=$(cat /sys/class/net/eth0/statistics/tx_packets) interrupts=$(echo $line | tr -s ' ' '_')"
}

# disk:DRIVER:MIB
job_disk() {
	case $1 in
	nvme) set -- nvme "$2" /dev/nvme0n1 ;;
	ahci) set -- ahci "$2" /dev/sda; modprobe sd_mod ;;
	virtio_blk) set -- virtio_blk "$2" /dev/vda; modprobe virtio_pci ;;
	esac
	modprobe "$1" || { say "disk FAIL modprobe $1"; return; }
	wait_for 15 test -b "$3" || { say "disk FAIL $3 does not appear"; return; }
	say "module $1 device=$3 sectors=$(cat /sys/block/${3##*/}/size)"
	say "$(disktest "$3" "$2" 2)"
}

# The extended image: a Debian tree on a virtio disk.
job_tree() {
	modprobe virtio_pci; modprobe virtio_blk; modprobe crc32c_generic; modprobe ext4
	wait_for 15 test -b /dev/vda || { say "tree FAIL no disk"; return; }
	mkdir -p /tree
	mount -t ext4 -o ro /dev/vda /tree || { say "tree FAIL mount"; return; }
	mount -t tmpfs -o size=70% work /tree/work
	mount -t tmpfs tmp /tree/tmp
	for d in proc sys dev; do mount -o bind /$d /tree/$d; done
	mount -t tmpfs shm /tree/dev/shm
}

# stress:NAME:SECONDS
job_stress() {
	[ -d /tree/usr ] || job_tree
	case $1 in
	cpu|fork|switch|context|signal|sigrt|timer|futex|pipe|madvise) extra="" ;;
	vm|mmap|pagemove|mremap|userfaultfd) extra="--$1-bytes 64M" ;;
	esac
	# As root, madvise also poisons pages (MADV_HWPOISON), after which Linux 6.1 itself warns, on any machine.
	case $1 in madvise) as="/usr/sbin/chroot --userspec=65534:65534 /" ;; *) as="" ;; esac
	workers=$(nproc)
	before=$(dmesg | wc -l)
	out=$(chroot /tree $as /usr/bin/stress-ng --temp-path /work --$1 $workers $extra --timeout ${2}s --verify --oomable --metrics-brief 2>&1)
	status=$?
	warnings=$(dmesg | tail -n +$((before + 1)) | grep -ciE 'warn|bug:|oops:|rcu.*stall|lockup|hung')
	[ $status = 0 ] || echo "$out"
	ops=$(echo "$out" | sed -n "s/.*\] $1 *\([0-9][0-9]*\) .*/\1/p" | head -n 1)
	say "stress $1 status=$status warnings=$warnings ops=$ops"
}

# xz:MIB: compress and decompress that much text-like data with Debian's xz on every CPU
job_xz() {
	[ -d /tree/usr ] || job_tree
	chroot /tree /bin/sh -c "
		awk 'BEGIN { for (i = 0; i < $1 * 32768; i++) printf \"%s line %d of the text, value %d and %d......\\n\", \"a\", i, (i * 7919) % 10007, (i * i) % 65537 }' | head -c ${1}M > /work/in
		sum=\$(sha256sum < /work/in)
		xz -T0 -1 -k /work/in && xz -T0 -t /work/in.xz && xz -T0 -dc /work/in.xz | sha256sum > /work/sum
		[ \"\$sum\" = \"\$(cat /work/sum)\" ] && echo 'TANDEM: xz ok bytes='\$(stat -c %s /work/in) packed=\$(stat -c %s /work/in.xz) || echo 'TANDEM: xz FAIL contents differ'
		rm -f /work/in*"
}

# cc:FILES: a program of that many C files, built with make -j, must give the right answer
job_cc() {
	[ -d /tree/usr ] || job_tree
	c_files /tree/work/p $1
	chroot /tree /bin/sh -c "
		cd /work/p
		make -s -j\$(nproc) && echo 'TANDEM: cc ok files=$1 answer='\$(./prog) || echo 'TANDEM: cc FAIL the build stopped'"
}

# c_files FOLDER COUNT: the sources of a program of that many files in C and one that calls them all, and its Makefile. The program prints 1040 * COUNT * (COUNT - 1).
c_files() {
	local i=0
	mkdir -p $1
	: > $1/all.h
	printf '#include "all.h"\n#include <stdio.h>\nint main(void) { unsigned long s = 0;\n' > $1/main.c
	while [ $i -lt $2 ]; do
		echo "unsigned long f$i(unsigned long x);" >> $1/all.h
		echo "s += f$i($i);" >> $1/main.c
		cat > $1/f$i.c <<-X
			#include <stdio.h>
			#include <stdlib.h>
			#include <string.h>
			static unsigned long t[64];
			unsigned long f$i(unsigned long x) { for (unsigned i = 0; i < 64; i++) t[i] = x * i + $i; unsigned long s = 0; for (unsigned i = 0; i < 64; i++) s += t[i]; return s; }
		X
		i=$((i + 1))
	done
	printf 'printf("%%lu\\n", s); return 0; }\n' >> $1/main.c
	printf 'O := $(patsubst %%.c,%%.o,$(wildcard *.c))\nprog: $(O)\n\tgcc -o $@ $^\n%%.o: %%.c all.h\n\tgcc -O2 -c -o $@ $<\n' > $1/Makefile
}

# Programs read the clock without asking the kernel.
job_clock() { say "$(clock) source=$(cat /sys/devices/system/clocksource/clocksource0/current_clocksource)"; }
# What UEFI gives: ACPI's tables, and variables, of which one is made and read back.
job_efi() {
	modprobe efivarfs && mount -t efivarfs efivarfs /sys/firmware/efi/efivars || { say "efi FAIL no variables"; return; }
	cd /sys/firmware/efi/efivars
	count=$(ls | wc -l)
	name=Tandem-12345678-1234-1234-1234-123456789abc
	printf '\007\000\000\000it was kept' > $name || { say "efi FAIL a variable cannot be written"; return; }
	kept=$(tail -c +5 $name)
	[ "$kept" = "it was kept" ] || { say "efi FAIL the variable has become '$kept'"; return; }
	[ "$(ls | wc -l)" = $((count + 1)) ] || { say "efi FAIL of $count variables and one there are $(ls | wc -l)"; return; }
	cd /
	say "efi ok variables=$count tables=$(ls /sys/firmware/acpi/tables | wc -l) width=$(cat /sys/firmware/efi/fw_platform_size) screen=$(cat /sys/class/graphics/fb0/name 2> /dev/null | tr ' ' '_')"
}
# dom0's own console is on the screen; it writes to the hypervisor's too, and then to its own. The first row has characters from
# which a picture can be read, the same as ALPHABET in xtask/src/screens/picture.rs.
job_screen() {
	echo "    words-by-way-of-the-hypervisor" > /dev/hvc0
	sleep 1
	alphabet="ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789.:-/="
	printf '\033[?25l\0337\033[H\033[2K%s\n\033[2Kwords-of-dom0\0338' "$alphabet" > /dev/tty1
	sleep 600
}
job_idle() { sleep "$1"; }
# Ends: each as the kernel does it.
job_poweroff() { sync; poweroff -f; sleep 60; }
job_reboot() { sync; reboot -f; sleep 60; }
job_panic() { echo c > /proc/sysrq-trigger; sleep 60; }
job_sysrqb() { echo b > /proc/sysrq-trigger; sleep 60; }
job_shell() {
	say "shell"
	setsid cttyhack sh 2>/dev/null || sh
}
# Idle for a while first: Xen clears free memory when it has nothing else to do, which must not be measured.
job_lmb() { sleep 3; lmb; }
# hvmem:KIB: what the hypervisor keeps for itself of that much RAM
job_hvmem() {
	modprobe xen-privcmd
	wait_for 5 test -c /dev/xen/privcmd
	# Free memory that is still to be cleared counts as free.
	sleep 2
	say "$(hvmem "$1")"
}
# domlife:CYCLES: that many domains are built, run and destroyed
job_domlife() {
	modprobe xen-privcmd
	wait_for 5 test -c /dev/xen/privcmd
	say "$(domlife "$1")"
}

# What else an image can do is in files of its own.
for more in /load.sh /reinit.sh /xen/dom0.sh /xen/driver.sh /guest.sh; do [ -f $more ] && . $more; done

for word in $(cat /proc/cmdline); do
	case $word in tandem.do=*) jobs=${word#tandem.do=} ;; esac
done
for job in $(echo "$jobs" | tr + ' '); do
	set -- $(echo "$job" | tr : ' ')
	name=$1
	shift
	job_$name "$@"
done
say "done"
poweroff -f
sleep 60
