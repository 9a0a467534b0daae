# For bash in dom0, after driving.sh and switching.sh: a driver domain that tandemd looks after.

# supervised_machine JOBS [LINE...]: $nic is dd's, whose kernel does these jobs by itself to make it the switch's way out. What is in use
# while tandemd runs and nobody else is remembered; then tandemd has ended.
supervised_machine() {
	take_nic
	driving dd "pci=['$nic,permissive=1']" "$(plug 2)" \
		"extra='$kernel_args iommu=soft swiotlb=4096 tandem.do=$1+drive'" "${@:2}"
	mkdir -p $logs
	: > $(log_of dd)
	way_out dd
	check tandemd-starts daemon_starts || return 1
	remember_frames
	check and-ends daemon_ends
}

# supervised_machine_ends: nobody is left but tandemd, and nothing stays
supervised_machine_ends() {
	check nothing-stays nothing_stays
	check frames-agree-at-the-end audit
	check assignable-remove xl pci-assignable-remove $nic
	check tandemd-ends daemon_ends
	cat $daemon_log > /dev/console
}

# supervised [LINE...]: tandemd is told to, and how
supervised() {
	way_out dd
	printf '[service.net.supervise]\nconfig = "/tmp/dd.cfg"\n' >> /etc/tandem/tandemd.toml
	for line in "$@"; do echo "$line" >> /etc/tandem/tandemd.toml; done
}

# daemon_ends: it is killed
daemon_ends() { kill -9 $(cat /tmp/tandemd.pid); wait_for 10 eval '! pidof tandemd'; }

# daemon_said COUNT WORDS [SECONDS]: so many lines of its log have them
daemon_said() {
	wait_for ${3:-120} eval "[ \"\$(grep -c '$2' $daemon_log)\" -ge $1 ]" && return
	tail -n 4 $daemon_log
	tail -n 3 $(log_of dd)
	return 1
}

# tell_dd COMMAND...: without waiting for an answer
tell_dd() { echo "t1 $*" > $(tty_of dd); }

# streams: u1's stream without an end begins. Between two bursts it rests: else it would have the processors, and what boots meanwhile the rest.
streams() { endless u1 10.9.0.1 20; }

# recovers NAME WORDS COMMAND...: after the command the daemon says that, another instance becomes the way out, and the guest's stream goes on
recovers() {
	local name=$1 words=$2 seen=$(grep -c "$2" $daemon_log) ways=$(grep -c 'it is the way out' $daemon_log) came=$(grep -c 'first packet in' $daemon_log)
	shift 2
	: > $(log_of dd)
	check $name "$@"
	check $name-is-noticed daemon_said $((seen + 1)) "$words" 120
	check $name-and-another-comes daemon_said $((ways + 1)) 'it is the way out' || return
	check $name-and-the-same-stream-goes-on moves u1
	check $name-is-written-down daemon_said $((came + 1)) 'recovered, .*first packet in' 120
}

# writes: u1 writes $mib MiB of its disk and verifies them again and again, with flushes; its rounds are counted
rounds() { in_guest u1 20 'cat /tmp/rounds' | tail -n 1; }
writes() { in_guest u1 20 "rm -f /tmp/stop; (n=0; echo 0 > /tmp/rounds; while [ ! -e /tmp/stop ] && disktest /dev/xvda $mib 2 600 > /tmp/disk; do n=\$((n + 1)); echo \$n > /tmp/round && mv /tmp/round /tmp/rounds; done) > /dev/null 2>&1 &"; }
more_rounds() {
	local before=$(rounds)
	[ -n "$before" ] && wait_for 200 eval "[ \"\$(rounds)\" -gt $((before + 1)) ]" && return
	echo "rounds $before before, now $(rounds)"
	in_guest u1 20 'cat /tmp/disk; dmesg | tail -n 3'
	tail -n 5 $daemon_log
	return 1
}
# disk_survives NAME WORDS COMMAND...: after the command the daemon says that, another instance has the disk, and the guest's writes go on
disk_survives() {
	local name=$1 words=$2 seen=$(grep -c "$2" $daemon_log) ways=$(grep -c 'it has the disks' $daemon_log) came=$(grep -c 'recovered, ' $daemon_log)
	shift 2
	: > $(log_of dd)
	check $name "$@"
	check $name-is-noticed daemon_said $((seen + 1)) "$words" 60
	check $name-and-another-comes daemon_said $((ways + 1)) 'it has the disks' 200 || return
	check $name-and-the-writes-go-on more_rounds
	check $name-is-written-down daemon_said $((came + 1)) 'recovered, ' 120
}
# no_disk_errors [GUEST]: its kernel has told of none
no_disk_errors() { in_guest ${1:-u1} 10 'dmesg | grep -iE "i/o error|ext4-fs error|blkfront.*error|bug:|oops" | head -n 8 || true' | tee /tmp/errors; ! grep -q . /tmp/errors; }
