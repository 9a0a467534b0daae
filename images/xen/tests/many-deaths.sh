# many-deaths.sh DRIVER WAY MODE COUNT SEED CAUSE[/N]...: a driver domain dies so often in a row, by each cause in turn, while three guests are busy; by a cause
# with /N in one round of N. WAY is one of dying.sh's, or kept if they take turns and the link of its interface is kept. All that
# they do goes on after each death before the next one comes, their connections are the same ones from the beginning to the end, and every
# byte is right. Of each death a line says how long it took until all went on:
#
#   death N CAUSE s=SECONDS back=SECONDS unanswered=DATAGRAMS faults=N | what tandemd says of it
#
# faults is how often its memory, its instructions or its device's addresses were damaged; all of them together are said at the end. A block that does not hold
# its last write, but another write of the guest's, where a driver may have been damaged that has an AHCI controller, is said as
#
#   undone GUEST BLOCK WRITE holds WRITE of BLOCK
#
# and the host decides whose fault that was (xtask/src/suite/refused.rs).
driver=$1 way=$2 mode=$3 count=$4 seed=$5
shift 5
keeps_link=
[ $way != kept ] || way=turns keeps_link=1
guests='u1 u2 u3'
story=deaths
# More than one processor can emulate would only make all of it slow.
rest_ms=500
# A damaged driver may take packets, and live on, and none come any more.
silent_ms=5000
. /xen/driving.sh
. /xen/switching.sh
. /xen/supervising.sh
. /xen/dying.sh

# Each guest has a partition. The first two write blocks, each in another half of its own; the third has files in a file system with a journal.
mib=8
node_of() { if [ $driver = nvme ]; then echo /dev/nvme0n1p${1#u}; else echo /dev/sda${1#u}; fi; }
disk_loads() {
	case $1 in
	u1) in_guest u1 20 "diskload /dev/xvda 0 $mib > /tmp/load 2>&1 &" ;;
	u2) in_guest u2 20 "diskload /dev/xvda $mib $mib > /tmp/load 2>&1 &" ;;
	u3)
		must 'the file system cannot be mounted' in_guest u3 60 'modprobe crc32c_generic; modprobe ext4; mkdir /mnt; mount -t ext4 /dev/xvda /mnt'
		in_guest u3 20 'fileload /mnt 64 > /tmp/load 2>&1 &'
		;;
	esac
}
# What the host is to find on the medium is said, too.
disk_ends() {
	local guest right='disk ok'
	! may_be_undone || right='disk [A-Za-z]* verified=[0-9]* wrong=[0-9]* errors=0'
	for guest in u1 u2; do
		check blocks-of-$guest-are-right said "$right" $guest 200 "killall diskload; wait_for 180 grep '^disk' /tmp/load; tail -n 1 /tmp/load"
		say "medium $guest $(in_guest $guest 20 'tail -n 1 /tmp/load' | grep -o 'sum=.*')"
	done
	! may_be_undone || { is_undone_only && all_are_known u1 && all_are_known u2; } || { told > /tmp/quit 2>&1; quit 'a byte-was-wrong, at the end'; }
	check files-are-right said 'files ok' u3 200 "killall fileload; wait_for 180 grep '^files' /tmp/load; tail -n 1 /tmp/load"
	in_guest u3 60 "grep '^file ' /tmp/load" | grep '^file ' | while read -r line; do say "medium $line"; done
	check the-file-system-is-unmounted in_guest u3 60 'umount /mnt'
	for guest in $guests; do check $guest-saw-no-error no_disk_errors $guest; done
}

# told: what guests have said of what went wrong, all of it and how much that is, and what driver domains have said of themselves. A damaged kernel may answer
# what it has not done.
told() {
	local guest
	for guest in $guests; do
		in_guest $guest 60 'grep -hE "^(tcp )?wrong|^error|FAIL" /tmp/load /tmp/ended > /tmp/wrong; wc -l < /tmp/wrong; head -n 40 /tmp/wrong; dmesg | tail -n 4'
	done
	grep -ahE 'WARNING:|BUG:|ata[0-9.]+: |nvme[0-9a-z]*: ' $(dirname $(log_of dd))/guest-dd*.log | tail -n 40
}

# A kernel whose memory is damaged may give a command of AHCI a tag that is in use: the controller does not do it, and that the other one is done is
# taken for its own end. It is done never, or later, when its page may have the bytes of the next one. NVMe's numbers of commands say which use of them it is.
may_be_undone() { [ $driver = ahci ] && [[ " $causes " = *' wild '* ]]; }
# is_undone_only: all that was found wrong is blocks of the first two guests that hold all of another write; those that are new are said, and no guest has
# found more than were said. One that does not answer may have.
declare -A known
is_undone_only() {
	local guest answer line is_new= undone='^wrong ([0-9]+) at [0-9]+: of write ([0-9]+) .* it is write ([0-9]+) of block ([0-9]+),'
	for guest in $guests; do
		answer=$(in_guest $guest 60 "awk -v known=${known[$guest]:-0} '/^(wrong|error)/ && (++n > known); END { print \"all\", n + 0 }' /tmp/load") || return 1
		while read -r line; do
			[[ $line = wrong* || $line = error* ]] || continue
			[[ $line =~ $undone ]] || return 1
			say "undone $guest ${BASH_REMATCH[1]} ${BASH_REMATCH[2]} holds ${BASH_REMATCH[3]} of ${BASH_REMATCH[4]}"
			known[$guest]=$((${known[$guest]:-0} + 1)) is_new=yes
		done <<< "$answer"
		grep -qx "all ${known[$guest]:-0}" <<< "$answer" || return 1
	done
	# What a kernel says when it warns, and a load when it ends, is no worry of the host's then.
	[ ! $is_new ] || tells eval "told | sed 's/WARNING:/warned:/; s/BUG:/bug:/; s/FAIL/failed/'"
}

# all_are_known GUEST: its load, which has ended, has found no more that was wrong
all_are_known() { said " wrong=${known[$1]:-0} " $1 20 'tail -n 1 /tmp/load' > /dev/null; }

# in_turn CAUSE[/N]...: the next one is ${turn[0]}; each of a round comes once before one comes again
RANDOM=$seed
turn=() round=0
in_turn() {
	local left=() n
	turn=(${turn[@]:1})
	[ ${#turn[@]} = 0 ] || return
	for n in "$@"; do
		[[ $n = */* && $((round % ${n#*/})) != 0 ]] || left+=(${n%/*})
	done
	round=$((round + 1))
	while [ ${#left[@]} -gt 0 ]; do
		n=$((RANDOM % ${#left[@]}))
		turn+=(${left[n]})
		left=(${left[@]:0:n} ${left[@]:n+1})
	done
}

causes=${*%/*}
${kind}_machine
waits 1
# Eight streams.
streams=([1]='put get put' 'get put get' 'put get')
for n in 1 2 3; do ${kind}_loads u$n ${streams[n]}; done
must 'the loads do not begin' goes_on
failures=0 files= unanswered=$(total now 5) lost_by_panics=()
declare -A deaths damage
for n in $(seq $count); do
	in_turn "$@"
	at=$(now_s)
	died ${turn[0]} $RANDOM
	lost=$(($(total now 5) - unanswered)) unanswered=$(total now 5)
	say "death $n ${turn[0]} s=$(($(now_s) - at)) back=$((back - at)) unanswered=$lost faults=$faults | $line"
	for what in '2 connection-was-lost' '3 byte-was-wrong' '4 request-failed'; do
		[ $(total now ${what% *}) = 0 ] || { [ ${what% *} = 3 ] && may_be_undone && is_undone_only; } || { told > /tmp/quit 2>&1; quit "a ${what#* }, death $n, ${turn[0]}"; }
	done
	[ ${turn[0]} != panic ] || lost_by_panics+=($lost)
	deaths[${turn[0]}]=$((deaths[${turn[0]}] + 1)) damage[${turn[0]}]=$((damage[${turn[0]}] + faults))
	[ ${turn[0]} = twind ] || failures=$((failures + 1))
	waits $((failures + 1))
	[ -n "$files" ] || files=$(daemon_files)
done
say "deaths $(for cause in "${@%/*}"; do echo -n "$cause=${deaths[$cause]:-0} "; done)faults: $(for cause in "${!damage[@]}"; do [ ${damage[$cause]} = 0 ] || echo -n "$cause=${damage[$cause]} "; done)"
# What a guest sends waits for the next way out. Lost is what this one had by then: a panic that is noticed at once takes it half a second of each guest's
# at most, or longer now and then, when whoever prints its console has no processor.
middle() { printf '%s\n' "$@" | sort -n | sed -n "$((($# + 1) / 2))p"; }
[ ${#lost_by_panics[@]} = 0 ] || check what-waits-is-not-lost eval '[ $(middle ${lost_by_panics[@]}) -le 75 ] || { echo "lost: ${lost_by_panics[*]}"; false; }'
check tandemd-keeps-no-file eval '[ $(daemon_files) -le $files ] || { echo "$files after the first, now $(daemon_files)"; ls -l /proc/$(cat /tmp/tandemd.pid)/fd; false; }'
${kind}_ends "${@%/*}"
dying_ends "${@%/*}"
