# The loads of `./tandem bench net`, `disk` and `files`, the same on the bare machine, in dom0 and in a guest: sourced by init.sh.
# What they report is shown when all are over: a console would be part of what is measured.

# modules:DOMAIN: where the kernel's modules are, for the host to tell them apart
job_modules() {
	echo 0 > /proc/sys/kernel/kptr_restrict
	sed "s/^\([^ ]*\) \([0-9]*\) .* \(0x[0-9a-f]*\).*/TANDEM: module $1 \1 \2 \3/" /proc/modules
}

# nic:DRIVER: the NIC at 10.9.0.2
job_nic() {
	modprobe "$1" || { say "load FAIL modprobe $1"; return; }
	wait_for 10 test -e /sys/class/net/eth0 || { say "load FAIL no interface from $1"; return; }
	ifconfig lo 127.0.0.1 up
	ifconfig eth0 10.9.0.2 netmask 255.255.255.0 up
	wait_for 15 ping -c 1 -W 1 10.9.0.1 || say "load FAIL no answer to ping"
}

# nvme: the disk
job_nvme() {
	modprobe nvme
	wait_for 15 test -b /dev/nvme0n1 || { say "load FAIL no disk"; return 1; }
}

# measure_few:COUNT: packets and streams over eth0
job_measure_few() {
	traffic serve
	traffic arm
	{
		traffic send send-1500 1514 $1
		traffic receive receive-1500 1514 $1
		traffic put tcp-send $(($1 * 4))
		traffic get tcp-receive $(($1 * 4))
	} > /tmp/load 2>&1
	cat /tmp/load
}

# measure_net:COUNT: packets, streams, pings and web pages over eth0
job_measure_net() {
	mkdir -p /www
	head -c 1024 /dev/zero | tr '\0' x > /www/1k
	head -c 16384 /dev/zero | tr '\0' y > /www/16k
	httpd -p 80 -h /www
	traffic serve
	traffic arm
	# What a received segment costs a kernel with one CPU depends on whether a tick takes the CPU from the reader in the
	# middle of a read: a window has to have many ticks, of 4 ms each. A guest needs fewer segments for them.
	[ $domain = dom0 ] && received=$(($1 * 64)) || received=$(($1 * 4))
	{
		traffic send send-64 60 $1
		traffic send send-512 508 $1
		traffic send send-1500 1514 $1
		traffic receive receive-64 60 $1
		traffic receive receive-1500 1514 $1
		traffic put tcp-send $(($1 * 4))
		traffic get tcp-receive $received
		traffic ping $(($1 / 10))
		traffic web web-1k 81 /1k $(($1 / 10))
		traffic web web-16k 81 /16k $(($1 / 10))
		traffic web web-fork-1k 80 /1k $(($1 / 20))
		traffic web web-fork-16k 80 /16k $(($1 / 20))
		traffic offloads eth0 off
		traffic put tcp-send-plain $(($1 * 4))
		traffic get tcp-receive-plain $received
		traffic offloads eth0 on
	} > /tmp/load 2>&1
	cat /tmp/load
}

# measure_disk:COUNT:DEVICE
job_measure_disk() {
	traffic arm
	{
		blocks random-read-32 $2 read random 4096 $1 32
		blocks random-write-32 $2 write random 4096 $1 32
		blocks sequential-read-32 $2 read sequential 4096 $1 32
		blocks sequential-write-32 $2 write sequential 4096 $1 32
		blocks random-read-1 $2 read random 4096 $(($1 / 4)) 1
		blocks random-write-1 $2 write random 4096 $(($1 / 4)) 1
		blocks read-64k $2 read sequential 65536 $(($1 / 8)) 8
		blocks write-64k $2 write sequential 65536 $(($1 / 8)) 8
	} > /tmp/load 2>&1
	cat /tmp/load
}

# measure_files:COUNT:DEVICE: on the file system of DEVICE, which has gcc and make, a program of COUNT files in C is built, and a file of sixteen times as many
# blocks of 64 KiB is written and read. What the compiler is made of has been read before.
job_measure_files() {
	local work=/tree/work/p big="/tree/work/big" blocks=$(($1 * 16)) in="chroot /tree /bin/sh -c"
	mkdir -p /tree
	modprobe crc32c_generic
	modprobe ext4 && mount -t ext4 $2 /tree || { say "load FAIL no file system"; return 1; }
	mount -o bind /dev /tree/dev
	mount -t tmpfs tmp /tree/tmp
	c_files $work $1
	{
		$in 'cd /work/p && make -s f0.o f1.o && gcc -o warm f0.o f1.o -shared && rm f0.o f1.o warm' || say "load FAIL no compiler"
		dd if=/dev/zero of=$big bs=64k count=64 conv=fsync
		sync
		traffic arm
		traffic run build $1 $in 'cd /work/p && make -s && sync'
		traffic run file-write $blocks dd if=/dev/zero of=$big bs=64k count=$blocks conv=fsync
		echo 3 > /proc/sys/vm/drop_caches
		traffic run file-read $blocks dd if=$big of=/dev/null bs=64k
		[ "$($in /work/p/prog)" = $((1040 * $1 * ($1 - 1))) ] || say "load FAIL the program is wrong"
	} > /tmp/load 2>&1
	cat /tmp/load
	umount /tree/tmp /tree/dev /tree
}

# loads:DOMAIN:KIND:ARGUMENT...: all of a kind; KIND is net, few (of the same), disk or files
job_loads() {
	domain=$1
	kind=$2
	shift 2
	job_modules $domain
	say "loads $domain"
	# Idle for a while first: Xen clears free memory when it has nothing else to do.
	sleep 3
	job_measure_$kind "$@"
	say "loaded $domain"
}
