#!/usr/bin/env bash
# Gets what tests, demo and benchmark need and this machine lacks: programs by
# apt, and in the background, while Go compiles, the servers and readers that the
# first test would otherwise wait for.
#
#   prepare.sh demo|test|bench|release [SOURCE]
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
for_what=${1:?demo, test, bench or release} source=${2:-mariadb}

missing=()
need() { command -v "$1" >/dev/null 2>&1 || missing+=("$2"); }
need python3 python3
python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
need unshare util-linux
if [ "$for_what" != demo ]; then
	need gcc gcc # the race detector is linked by it
	[ -e /usr/include/stdlib.h ] || missing+=(libc6-dev)
	need javac openjdk-17-jdk-headless
	need mvn maven
fi
if [ ${#missing[@]} -gt 0 ]; then
	echo "prepare: installing ${missing[*]}" >&2
	apt-get -qq update >&2
	DEBIAN_FRONTEND=noninteractive apt-get -y -qq install --no-install-recommends "${missing[@]}" >&2
fi

# Each is set up once and then takes no time; what goes wrong here shows itself,
# with its reason, in the test that needs it.
warm() {
	local log=${TMPDIR:-/tmp}/lakesync-prepare-$1.log
	shift
	"$@" >"$log" 2>&1 </dev/null || true
}
(
	[ "$source" != mariadb ] || warm mariadb "$here/servers/mariadb.sh" run -v 11.8 -- mariadb --version
	case $for_what-$source in
	demo-postgres | test-* | release-*) warm postgres "$here/servers/postgres.sh" run -v 17 -- psql --version ;;
	esac
	[ "$for_what" = demo ] || warm java "$here/readers/java.sh" schema /nonexistent
	warm duckdb "$here/readers/read.sh" duckdb serve
	if [ "$for_what" = test ] || [ "$for_what" = release ]; then
		warm mysql "$here/servers/mysql.sh" run -- mysql --version
		warm spark "$here/readers/read.sh" spark serve
		[ "$for_what" = test ] || warm postgres15 "$here/servers/postgres.sh" run -v 15 -- psql --version
		[ "$for_what" = test ] || warm postgres18 "$here/servers/postgres.sh" run -v 18 -- psql --version
		warm mariadb10 "$here/servers/mariadb.sh" run -v 10.11 -- mariadb --version
	elif [ "$for_what" = bench ]; then
		warm mysql "$here/servers/mysql.sh" run -- mysql --version
	fi
) >/dev/null 2>&1 &
