# For bash in dom0, after lib.sh: tandemd, and guests whose interfaces the hypervisor's switch serves.
daemon_log=/var/log/tandemd.log

# daemon_starts: it serves, and the back end's domain is there
daemon_starts() {
	local before=$(grep -c ': served' $daemon_log 2> /dev/null)
	tandemd > /dev/null 2>> $daemon_log &
	echo $! > /tmp/tandemd.pid
	wait_for 40 eval "[ \"\$(grep -c ': served' $daemon_log)\" -gt ${before:-0} ]" && return
	tail -n 3 $daemon_log
	return 1
}

# way_out DOMAIN: the driver domain of that name is to be the way out
way_out() {
	mkdir -p /etc/tandem
	printf '[service.net]\ndriver-domain = "%s"\n' $1 > /etc/tandem/tandemd.toml
}

# plug LAST: a line of a configuration: an interface at the switch
plug() { echo "vif=['mac=00:16:3e:00:00:0$1,backend=net']"; }

# plugged_address NAME LAST: the guest's front end is connected, and eth0 is 10.9.0.LAST
plugged_address() {
	in_guest $1 40 "modprobe xen-netfront; wait_for 10 test -e /sys/class/net/eth0 && ifconfig lo 127.0.0.1 up && ifconfig eth0 10.9.0.$2 netmask 255.255.255.0 up && wait_for 10 grep -q 1 /sys/class/net/eth0/carrier" && return
	xenstore-ls /local/domain/$(xl domid net)
	tail -n 3 $daemon_log
	return 1
}

# reaches NAME LAST: no ping of five is lost, but for the first, which may wait for the address
reaches() { in_guest $1 20 "ping -c 1 -W 2 10.9.0.$2" > /dev/null; said ' 0% packet loss' $1 60 "ping -c 5 -i 0.2 -W 5 10.9.0.$2"; }

# moves NAME [MB]: so many megabytes (one) leave its interface
moves() { said '^moves$' $1 90 "bytes() { cat /sys/class/net/eth0/statistics/tx_bytes; }; from=\$(bytes); wait_for 60 eval \"[ \\\$(bytes) -gt \$((from + ${2:-1} * 1000000)) ]\" && echo moves"; }

# endless NAME [ADDRESS [MS]]: a stream begins, to the outside or to that guest, which goes on for longer than the checks take; after each
# 64 KiB it rests for so long
endless() { in_guest $1 10 "(tcptest put ${2:-10.9.0.1} 65536 $3 2>&1 | grep -v '^tcp at' > /tmp/stream) &" && moves $1; }

# outside_answers NAME [SECONDS]: soon a ping of one is answered. (One without an answer takes a second.)
outside_answers() { in_guest $1 $((${2:-5} * 2)) "wait_for ${2:-5} ping -c 1 -W 1 10.9.0.1"; }

# refuses WORDS ARGUMENT...: twinctl says no, and why
refuses() {
	local words=$1
	shift
	twinctl "$@" > /tmp/refused 2>&1 && { cat /tmp/refused; return 1; }
	cat /tmp/refused
	grep -q "$words" /tmp/refused
}
