# flood.sh DRIVER SECONDS: what a guest that floods leaves to another one, of the way out and of a disk. u1 is the one who is watched, u2 floods. Each figure is of a window
# of so many seconds, by the hypervisor's counts, and is said as `measured ...`.
#
# Where the driver domain is what is scarce, it is shared by weights. On a machine with few processors these are scarce first, and their scheduler shares them; so for most of
# this the driver domain has a cap (per cent of a processor) that is much less than guests can make it do, also the heavier one alone on a busy host.
driver=$1
seconds=$2
cap=10
. /xen/driving.sh
. /xen/switching.sh
take_nic
nvme=$(devices class 0x0108)
check assignable-add-the-disk xl pci-assignable-add $nvme

# What a check measured, for the log; `check` keeps what it prints to itself.
note() { echo "$*" | tee /tmp/note; }
measured() {
	rm -f /tmp/note
	check "$@"
	[ ! -e /tmp/note ] || say "measured $1: $(cat /tmp/note)"
}

# services [WEIGHT-OF-U1 WEIGHT-OF-U2]: one driver domain has the card and the disk
services() {
	local kind
	mkdir -p /etc/tandem
	printf '[service.net]\ndriver-domain = "dd"\n[service.disk]\nkind = "disk"\ndriver-domain = "dd"\n' > /etc/tandem/tandemd.toml
	[ $# = 0 ] || for kind in net disk; do printf '[service.%s.weights]\nu1 = %s\nu2 = %s\n' $kind $1 $2; done >> /etc/tandem/tandemd.toml
}
services
check tandemd-starts daemon_starts || exit
drives() {
	driving dd "pci=['$nic,permissive=1','$nvme,permissive=1']" "$(plug 2)"
	boot dd && in_guest dd 150 "bridge_switch $driver && job_backend nvme"
}
check a-driver-domain-has-card-and-disk drives || { cat $daemon_log; exit; }
# guests [KEY]: both are made; u2's interface has this key
guests() {
	local n
	for n in 1 2; do
		config u$n "vif=['mac=00:16:3e:00:00:0$((n + 2)),backend=net$([ $n = 1 ] || echo $1)']" \
			"disk=['format=raw,vdev=xvda,access=r,backend=disk,script=disk-plug,target=/dev/nvme0n1']"
		boot u$n && plugged_address u$n $((n + 2)) && outside_answers u$n 30 &&
			in_guest u$n 90 'modprobe xen-blkfront; wait_for 80 test -b /dev/xvda' || { tail -n 5 $daemon_log; return 1; }
	done
}
# guests_anew WEIGHTS KEY: they are made again, which is when weights and limits count
guests_anew() {
	# It plugs them in, which takes a while.
	xl sched-credit2 -d dd -c 0
	xl destroy u1 && xl destroy u2 && gone u1 && gone u2 || return 1
	services $1
	twinctl reload && guests $2
}
check two-guests guests || exit

# counts: packets and bytes that u1 and u2 have sent and requests and bytes that they have read, then the time in ms
counts() {
	local n
	twinctl stats > /tmp/stats
	for n in 1 2; do
		sed -n "s/^net u$n\/[0-9]* sent: \([0-9]*\) packets, \([0-9]*\) bytes.*/\1 \2/p" /tmp/stats
		sed -n "s/^disk u$n\/[0-9]*: \([0-9]*\) reads, \([0-9]*\) bytes.*/\1 \2/p" /tmp/stats
	done
	sed 's/\([0-9]*\)\.\([0-9]*\).*/\1\20/' /proc/uptime
}
# window: what was sent and read meanwhile, for each second
window() {
	local from to i each=()
	from=($(counts))
	sleep $seconds
	to=($(counts))
	[ ${#to[@]} = 9 ] || { cat /tmp/stats; return 1; }
	for i in 0 1 2 3 4 5 6 7; do each[i]=$(((to[i] - from[i]) * 1000 / (to[8] - from[8]))); done
	packets1=${each[0]} bytes1=${each[1]} reads1=${each[2]} read1=${each[3]} packets2=${each[4]} bytes2=${each[5]} reads2=${each[6]} read2=${each[7]}
}
# floods N BYTES [EVERY-US], seeks N BYTES DEPTH: the guest does that until it is stopped; ends N WHAT
floods() { in_guest u$1 10 "flood 10.9.0.1 $2 3600 $3 > /tmp/flood 2>&1 &"; }
seeks() { in_guest u$1 10 "seeks /dev/xvda $2 $3 3600 > /tmp/seeks 2>&1 &"; }
ends() { in_guest u$1 30 "killall $2; wait_for 20 eval '! pidof $2'"; }
# from what has begun until it is as it stays
settles() { sleep 2; }
# at_least PERCENT OF WHAT; near PERCENT WANTED GOT
at_least() { [ $(($3 * 100)) -ge $(($1 * $2)) ]; }
near() { [ $(($3 * 100)) -ge $(((100 - $1) * $2)) ] && [ $(($3 * 100)) -le $(((100 + $1) * $2)) ]; }
# cost PACKETS BYTES OF-EACH: what the way out counts datagrams for
cost() { if [ $3 -lt 512 ]; then echo $(($1 * 512)); else echo $2; fi; }

# beside BYTES SHARE PART: u1's stream alone, and then beside a flood of datagrams of that length: it has that share of what both send, as the way out counts it, and that
# part of what it had alone, both in per cent at least.
beside() {
	local share alone
	settles && window && alone=$bytes1 && floods 2 $1 && settles && window && ends 2 flood || return 1
	share=$((bytes1 * 100 / (bytes1 + $(cost $packets2 $bytes2 $1))))
	note "u1 $((bytes1 / 1000)) kB/s, alone $((alone / 1000)): $((bytes1 * 100 / alone)) %; u2 $packets2 datagrams/s, $bytes2 B/s; u1's share $share %"
	[ $share -ge $2 ] && at_least $3 $alone $bytes1
}
# One stream has no more under way than the outside takes (256 KiB), and what the driver domain has in its ring goes first: where that is slow one stream does not
# always have something waiting. Four have.
streams() { local n; for n in 1 2 3 4; do endless u1 || return 1; done; }
check streams streams
measured streams-beside-64-bytes beside 64 45 30
measured streams-beside-1500-bytes beside 1500 45 30
check a-cap xl sched-credit2 -d dd -c $cap
measured streams-beside-64-bytes-by-what-is-scarce beside 64 40 0
measured streams-beside-1500-bytes-by-what-is-scarce beside 1500 40 0
ends 1 tcptest

# two FIRST SECOND WEIGHT: both flood, with datagrams of these lengths; u1 is so many times as heavy
two() {
	local cost1 cost2
	floods 1 $1 && floods 2 $2 && settles && window && ends 1 flood && ends 2 flood || return 1
	cost1=$(cost $packets1 $bytes1 $1) cost2=$(cost $packets2 $bytes2 $2)
	note "u1 $packets1 datagrams of $1 bytes/s, u2 $packets2 of $2; shares $((cost1 * 1000 / (cost1 + cost2))) and $((cost2 * 1000 / (cost1 + cost2))) of 1000"
	near 5 $((($cost1 + $cost2) * $3 / ($3 + 1))) $cost1
}
measured two-floods two 1500 1500 1
measured two-floods-of-other-lengths two 1500 64 1
# Who wants less than its share has all of it.
paced() {
	floods 1 1500 10000 && floods 2 64 && settles && window && ends 1 flood && ends 2 flood || return 1
	note "u1 $packets1 of 100 datagrams/s that it wants, u2 $packets2 of 64 bytes"
	at_least 95 100 $packets1
}
measured a-guest-that-wants-little paced

# A disk: the same of requests. The guest that has one at a time waits for what is under way, not for all that the other one has waiting.
one_by_one() {
	in_guest u1 $((seconds + 60)) "seeks /dev/xvda 4096 1 $seconds" > /tmp/seeks || { cat /tmp/seeks; return 1; }
	sed -n 's/.*mean_us=\([0-9]*\) .*/\1/p' /tmp/seeks
}
read_alone() {
	one_by_one > /tmp/mean || return 1
	cp /tmp/mean /tmp/mean.alone
	note "$(grep -ao 'reads=.*' /tmp/seeks)"
}
read_beside() {
	seeks 2 $1 32 && settles && one_by_one > /tmp/mean && ends 2 seeks || return 1
	note "$(grep -ao 'reads=.*' /tmp/seeks), $(($(cat /tmp/mean) * 10 / $(cat /tmp/mean.alone))) tenths of what it takes alone"
	[ $(cat /tmp/mean) -le $(($(cat /tmp/mean.alone) * $2)) ]
}
# both_read FIRST SECOND WEIGHT: each has 32 requests of that length under way. One costs one, and one for each page. A driver domain with a cap runs in pieces, and nobody
# has more than 32 done in one of these: so they are long enough for that to be more than a share.
both_read() {
	local cost1 cost2
	seeks 1 $1 32 && seeks 2 $2 32 && settles && window && ends 1 seeks && ends 2 seeks || return 1
	cost1=$((reads1 + read1 / 4096)) cost2=$((reads2 + read2 / 4096))
	note "u1 $reads1 reads of $1 bytes/s, u2 $reads2 of $2; shares $((cost1 * 1000 / (cost1 + cost2))) and $((cost2 * 1000 / (cost1 + cost2))) of 1000"
	near 5 $((($cost1 + $cost2) * $3 / ($3 + 1))) $cost1
}
measured reads-one-by-one read_alone
measured reads-beside-32-of-4-kib read_beside 4096 20
measured reads-beside-32-of-128-kib read_beside 131072 20
measured two-who-read both_read 65536 65536 1
measured two-who-read-other-lengths both_read 65536 131072 1

check weights guests_anew '768 256'
check a-cap-again xl sched-credit2 -d dd -c $cap
check they-are-told eval "grep -q 'u1: connected.*weight 768' $daemon_log"
measured two-floods-by-weight two 1500 1500 3
measured two-floods-of-other-lengths-by-weight two 1500 64 3
measured two-who-read-by-weight both_read 65536 65536 3

# A limit, where nothing is scarce but processors: u2's holds, and u1 has what is left of these.
check a-limit guests_anew '' ',rate=500Kb/s'
check it-is-told eval "grep -q 'u2: connected.*rate' $daemon_log"
limited() { beside $1 0 60 && near 6 62500 $bytes2; }
check streams-again streams
measured a-limit-holds-for-1500-bytes limited 1500
measured a-limit-holds-for-64-bytes limited 64
ends 1 tcptest
check no-access-was-stopped no_dma_stopped
check frames-agree audit
check tandemd-ends eval 'kill -9 $(cat /tmp/tandemd.pid)'
cat $daemon_log > /dev/console
