# many.sh GUESTS: that many at once, each with an interface, each streaming to the next.
guests=${1:-8}
remember
start_all() {
	for n in $(seq $guests); do
		config m$n "vif=[\"mac=00:16:3e:00:01:0$n,bridge=xenbr0\"]"
		: > $logs/guest-m$n.log
		xl create /tmp/m$n.cfg > /tmp/m$n.create 2>&1 || { cat /tmp/m$n.create; return 1; }
	done
	for n in $(seq $guests); do serving m$n 200 || return 1; done
}
mkdir -p $logs
check $guests-guests-at-once start_all || exit
check list-shows-them-all sh -c "[ \$(xl list | grep -c '^m[0-9]') = $guests ]"
each() { # each COMMAND: in every guest at the same time; %next is the next one's address
	local n
	for n in $(seq $guests); do
		in_guest m$n 200 "$(echo "$1" | sed "s/%me/$((10 + n))/; s/%next/$((10 + n % guests + 1))/")" > /tmp/each.$n &
	done
	wait $(jobs -p)
}
serve_all() {
	each 'job_address %me && { (tcptest serve > /dev/null 2>&1 &); echo ready; }'
	[ "$(cat /tmp/each.* | grep -c ready)" = $guests ]
}
check each-has-an-address serve_all
streams() {
	each 'tcptest put 10.9.0.%next 2'
	cat /tmp/each.*
	[ "$(cat /tmp/each.* | grep -c 'tcp ok')" = $guests ]
}
check each-streams-to-the-next streams
outside() {
	each 'tcptest get 10.9.0.1 1'
	cat /tmp/each.*
	[ "$(cat /tmp/each.* | grep -c 'tcp ok')" = $guests ]
}
check each-streams-from-outside outside
stop_all() {
	for n in $(seq $guests); do xl destroy m$n || return 1; done
	for n in $(seq $guests); do gone m$n || return 1; done
}
check destroy-them-all stop_all
check nothing-stays nothing_stays
