# For bash in dom0: guests, commands in them, and checks with their reports.
logs=/var/log/xen/console

say() { echo "TANDEM: $*"; }

# nap SECONDS: no process is started for it. All domains share two emulated processors, and a process costs as much as a guest's answer.
[ -p /tmp/never ] || mkfifo /tmp/never
exec 9<> /tmp/never
nap() { ! read -r -t $1 -u 9; }

# wait_for SECONDS COMMAND...: until the command succeeds
wait_for() {
	local tries=$(($1 * 5))
	shift
	until "$@" > /dev/null 2>&1; do
		tries=$((tries - 1))
		[ $tries -gt 0 ] || return 1
		nap 0.2
	done
}

# What every guest's kernel is told. Packets wait in its queues as they do in dom0's, which the host chose.
kernel_args="console=hvc0 quiet panic=-1 sysctl.net.core.default_qdisc=$(cat /proc/sys/net/core/default_qdisc)"
# As in dom0, programs lie where they would without chance (the bench wants that).
case $(cat /proc/cmdline) in *norandmaps*) kernel_args="$kernel_args norandmaps" ;; esac
# A command that shows that it does not drop them.
keeps='grep pfifo_fast /proc/sys/net/core/default_qdisc'

# config NAME [LINE...]: a guest's configuration in /tmp/NAME.cfg; further lines override
config() {
	cfg=/tmp/$1.cfg
	cat > $cfg <<X
type="pv"
name="$1"
kernel="/guest/vmlinux"
ramdisk="/guest/guest.cpio"
memory=128
vcpus=1
extra="$kernel_args tandem.do=serve"
X
	shift
	for line in "$@"; do echo "$line" >> $cfg; done
}

# boot NAME [OPTION...]: creates what config wrote, waits until it takes commands
boot() {
	mkdir -p $logs
	: > $logs/guest-$1.log
	xl create "${@:2}" /tmp/$1.cfg > /tmp/$1.create 2>&1 || { cat /tmp/$1.create; return 1; }
	serving $1
}

serving() {
	wait_for ${2:-90} grep -q 'TANDEM: serving' $logs/guest-$1.log && return
	echo "$1 does not come up; its console:"
	tail -n 5 $logs/guest-$1.log
	# For who reads the log: where its vCPUs are, twice, and which events are pending.
	xl debug-keys qde > /dev/null 2>&1
	sleep 1
	xl debug-keys d > /dev/null 2>&1
	return 1
}

# log_of NAME: where the guest's console goes; $its_log, if it was created with that name
log_of() { echo $logs/guest-${its_log:-$1}.log; }

# find_tty NAME: sets $tty to where its console is. Who has the name is kept, and asked again if it has another one.
find_tty() {
	local id= told
	[ ! -e /tmp/domid.$1 ] || read -r id < /tmp/domid.$1
	if [ -z "$id" ] || ! told=$(told_of $id) || [ "${told%%$'\n'*}" != "$1" ]; then
		id=$(xl domid $1) && told=$(told_of $id) || return 1
		echo $id > /tmp/domid.$1
	fi
	tty=${told#*$'\n'}
}
told_of() { xenstore-read /local/domain/$1/name /local/domain/$1/console/tty 2> /dev/null; }
tty_of() { local tty; find_tty $1 && echo $tty; }

# in_guest NAME SECONDS COMMAND...: over the guest's console; gives output and status, which is 2 if the guest does not answer. The limit is for what hangs: a guest that
# answers late because the machine is busy is none, so nobody gets less than a minute.
in_guest() {
	local name=$1 left=$((($2 < 60 ? 60 : $2) * 5)) log=$(log_of $1) number tty from answer line status= gone= pause=0.1
	shift 2
	read -r number line < /proc/uptime
	find_tty $name || { echo "no answer from $name"; return 2; }
	from=$(wc -c < $log)
	echo "$number $*" > $tty
	# It comes in pieces, and the status last, with a full stop; the end of the line may be another one's.
	local did="TANDEM: did $number ([0-9]+)[.]"
	# A domain that is gone does not answer; its console goes with it.
	while [ -z "$status$gone" ] && [ $left -gt 0 ]; do
		left=$((left - 1))
		nap $pause
		[ -e $tty ] || gone=yes
		answer=$(tail -c +$((from + 1)) $log)
		[[ ! $answer =~ $did ]] || status=${BASH_REMATCH[1]}
		pause=0.2
	done
	answer=${answer//$'\r'/}
	if [ -z "$status" ]; then
		# What it was asked is no output: somebody may look for words in that.
		echo "no answer from $name"
		echo "it was asked: $*" >&2
		echo "$answer" | tail -n 5
		# What its kernel died of is forty lines of registers before that; of a report the last lines are shown.
		echo "$answer" | grep -aE 'Kernel panic|BUG:|Oops' | tail -n 3
		return 2
	fi
	while IFS= read -r line; do [[ $line == *'TANDEM: did'* ]] || echo "$line"; done <<< "$answer"
	[ $status = 0 ]
}

# said WORDS NAME SECONDS COMMAND...: the command in the guest says that, and comes to its end
said() {
	local words=$1 out status
	shift
	out=$(in_guest "$@")
	status=$?
	echo "$out"
	[ $status != 2 ] && grep -q "$words" <<< "$out"
}

# streams_ok COUNT NAME SECONDS COMMAND...: so many streams of the commands in the guest are right. `said` would be content with one of them.
streams_ok() {
	said "^right $1\$" $2 $3 "{ ${*:4}; } > /tmp/right; cat /tmp/right; echo right \$(grep -c '^tcp ok' /tmp/right)"
}

# free_kib: what the hypervisor has free
free_kib() { hvmem 0 | sed 's/.*free_kib=\([0-9]*\).*/\1/'; }

# in_use: what domain 0 and the machine as a whole hold: event channels, grants, interrupts, devices, the IOMMU's tables
# (key `u`, which is another one on stock Xen: there it is the event channels alone)
in_use() {
	echo "event channels $(lsevtchn 0 | wc -l)"
	# What was said before is no answer, and equals none.
	xl debug-keys u || { echo "no answer at $(cat /proc/uptime)"; return 1; }
	xl dmesg | awk "/'u' pressed/ { said = \"\" } /use: (machine|d0): / { sub(/.*use: /, \"\"); said = said \$0 \"\n\" } END { printf \"%s\", said }"
}

# account WHEN: to the console, where the hypervisor's memory is, by the size of its objects, and what is in use
account() {
	say "account $1: $(free_kib) KiB free" > /dev/console
	xl debug-keys mu
}

# remember [NAME]: what is free and in use now, for nothing_stays
remember() {
	account before
	in_use > /tmp/in_use.$1
	free_kib > /tmp/free.$1
}
# remember_less KIB: so much that was free may stay in use
remember_less() { echo $(($(cat /tmp/free.) - $1)) > /tmp/free.; }
as_before() { [ "$(free_kib)" -ge $(cat /tmp/free.$1) ] && in_use | cmp -s - /tmp/in_use.$1; }

# nothing_stays [NAME]: soon all memory is free that was, to the page, and nothing is in use that was not
nothing_stays() {
	wait_for 20 as_before "$1" && return
	account after
	echo "$(cat /tmp/free.$1) KiB free before, $(free_kib) now"
	in_use | diff /tmp/in_use.$1 - | grep '^[+-][^+-]'
	return 1
}

# gone NAME: waits until the domain is no more
gone() { wait_for ${2:-30} eval "! xl domid $1"; }

# quoted: lines of kernels and of the hypervisor, so that nobody takes them for such as came in between
quoted() { sed 's/\[\( *[0-9.]*\)\] /<\1> /g; s/(\(TDM\|XEN\)) /\1: /g'; }

# no_node PATTERN: xenstore answers, and has no node whose line is like that
no_node() {
	xenstore-ls -f > /tmp/nodes && ! grep -E "$1" /tmp/nodes
}

# check NAME COMMAND...: reports whether it succeeds; its output tells why not
check() {
	local name=$1 out status
	shift
	out=$("$@" 2>&1)
	status=$?
	if [ $status = 0 ]; then
		say "check ok $name"
	else
		say "check FAIL $name: status $status: $(echo "$out" | tail -n 12 | quoted | tr '\n' '|')"
	fi
	return $status
}

# same NAME WANTED GOT
same() {
	if [ "$2" = "$3" ]; then say "check ok $1"; else say "check FAIL $1: wanted '$2', got '$3'"; fi
}

# lacking REASON NAME COMMAND...: known to be missing here (not on stock Xen); says when it is there after all
lacking() {
	local reason=$1 name=$2
	shift 2
	if "$@" > /tmp/lacking.out 2>&1; then
		say "check ok $name"
	else
		say "check lacking $name: $reason"
	fi
}
