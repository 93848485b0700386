package main

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// row is the list of a row's values, in the order of `values`.
func row(rnd *rand.Rand, tx int64) []string {
	opt := func(s string) string {
		if rnd.IntN(8) == 0 {
			return "NULL"
		}
		return s
	}
	return []string{
		fmt.Sprint(tx), fmt.Sprint(rnd.IntN(4)), region(rnd),
		opt(fmt.Sprint(rnd.Int64() - rnd.Int64())),
		opt(fmt.Sprintf("%d.%04d", rnd.IntN(2_000_000)-1_000_000, rnd.IntN(10000))),
		opt(fmt.Sprintf("'ü%x'", rnd.IntN(1<<30))),
		opt(fmt.Sprintf("x'%016x'", rnd.Uint64())),
		opt(start.AddDate(0, 0, rnd.IntN(20000)).Format("'2006-01-02") + fmt.Sprintf(" 12:34:56.%06d'", rnd.IntN(1_000_000))),
		opt(start.AddDate(0, 0, rnd.IntN(900)).Format("'2006-01-02'")),
		opt(fmt.Sprintf("%.6f", rnd.Float64()*1e6)),
		opt(fmt.Sprintf("REPEAT('%c',%d)", 'a'+rune(rnd.IntN(26)), rnd.IntN(200))),
	}
}

func region(rnd *rand.Rand) string {
	return []string{"'eu'", "'us'", "'a/b'", "''"}[rnd.IntN(4)]
}

var valueNames = []string{"tx", "u", "region", "a", "d", "s", "b", "t", "day", "x", "note"}

func (r *relation) names() string {
	var names []string
	for _, k := range r.key {
		names = append(names, k.name)
	}
	return strings.Join(append(append(names, valueNames...), r.columns()...), ",")
}

func (r *relation) tuple(rnd *rand.Rand, n int, tx int64, extra int) string {
	all := append(r.literals(n), row(rnd, tx)...)
	for range extra {
		all = append(all, fmt.Sprint(rnd.IntN(1000)))
	}
	return "(" + strings.Join(all, ",") + ")"
}

func (r *relation) insert(rnd *rand.Rand, n int, tx int64) string {
	return fmt.Sprintf("INSERT INTO %s(%s) VALUES%s", r.full(), r.names(), r.tuple(rnd, n, tx, len(r.columns())))
}

// change is an assignment of some columns.
func (r *relation) change(rnd *rand.Rand, tx int64) string {
	vals := row(rnd, tx)
	set := []string{fmt.Sprintf("tx=%d", tx)}
	for range 1 + rnd.IntN(4) {
		i := 1 + rnd.IntN(len(vals)-1)
		set = append(set, valueNames[i]+"="+vals[i])
	}
	if extra := r.columns(); len(extra) > 0 && rnd.IntN(2) == 0 {
		set = append(set, fmt.Sprintf("%s=%d", extra[rnd.IntN(len(extra))], rnd.IntN(1000)))
	}
	return strings.Join(set, ", ")
}

// pick is the number of a key: often one of a few.
func (r *relation) pick(rnd *rand.Rand) int {
	if rnd.IntN(3) == 0 {
		return rnd.IntN(min(8, r.space))
	}
	return rnd.IntN(r.space)
}

// statements is one change of a random kind to a random key, whatever is there.
// What the server makes of it is in its tables.
func (r *relation) statements(rnd *rand.Rand, tx int64) []string {
	n, t := r.pick(rnd), r.full()
	update := func(n int) string { return fmt.Sprintf("UPDATE %s SET %s WHERE %s", t, r.change(rnd, tx), r.where(n)) }
	remove := func(n int) string { return fmt.Sprintf("DELETE FROM %s WHERE %s", t, r.where(n)) }
	moveKey := func(from, to int) string {
		return fmt.Sprintf("UPDATE IGNORE %s SET %s, tx=%d WHERE %s", t, r.setKey(to), tx, r.where(from))
	}
	verb := func(q, v string) string { return v + strings.TrimPrefix(q, "INSERT") }
	switch rnd.IntN(16) {
	case 0, 1:
		return []string{fmt.Sprintf("%s ON DUPLICATE KEY UPDATE %s", r.insert(rnd, n, tx), r.change(rnd, tx))}
	case 2:
		return []string{verb(r.insert(rnd, n, tx), "INSERT IGNORE")}
	case 3:
		return []string{verb(r.insert(rnd, n, tx), "REPLACE")}
	case 4:
		return []string{moveKey(n, r.pick(rnd))}
	case 5: // two rows change their keys with each other
		m := r.pick(rnd)
		return []string{remove(r.space), moveKey(n, r.space), moveKey(m, n), moveKey(r.space, m)}
	case 6:
		return []string{remove(n), r.insert(rnd, n, tx)}
	case 7:
		return []string{verb(r.insert(rnd, n, tx), "REPLACE"), update(n), remove(n)}
	case 8, 9:
		return []string{remove(n)}
	case 10: // some rows at once
		return []string{fmt.Sprintf("UPDATE %s SET %s WHERE u=%d LIMIT %d", t, r.change(rnd, tx), rnd.IntN(4), 1+rnd.IntN(25))}
	case 11:
		q := verb(r.insert(rnd, n, tx), "REPLACE")
		for range rnd.IntN(30) {
			q += "," + r.tuple(rnd, r.pick(rnd), tx, len(r.columns()))
		}
		// A column that another writer added meanwhile makes no difference: the
		// names are there.
		return []string{q}
	case 12:
		return []string{fmt.Sprintf("DELETE FROM %s WHERE u=%d LIMIT %d", t, rnd.IntN(4), 1+rnd.IntN(10))}
	default:
		return []string{update(n)}
	}
}

// large changes many rows of a relation at once.
func (r *relation) large(rnd *rand.Rand, tx int64) []string {
	insert := func() string {
		return fmt.Sprintf(`INSERT IGNORE INTO %s(id,tx,u,region,a,note) SELECT 18446744073709551615-n, %d, n%%4, 'eu', n*%d, REPEAT('%c',%d)
			FROM %s.numbers WHERE n<%d`, r.full(), tx, rnd.IntN(1000), 'a'+rune(rnd.IntN(26)), rnd.IntN(300), foreign, r.space)
	}
	switch rnd.IntN(4) {
	case 0:
		return []string{insert()}
	case 1:
		return []string{fmt.Sprintf("UPDATE %s SET tx=%d, a=COALESCE(a,0) DIV 2 + %d", r.full(), tx, rnd.IntN(1000))}
	case 2:
		return []string{fmt.Sprintf("DELETE FROM %s WHERE id%%%d=0", r.full(), 2+rnd.IntN(5))}
	default:
		return []string{insert(), fmt.Sprintf("UPDATE %s SET tx=%d, x=%d WHERE id%%2=0", r.full(), tx, rnd.IntN(1000)),
			fmt.Sprintf("DELETE FROM %s WHERE id%%3=0", r.full()), insert()}
	}
}

// huge is a transaction that the smallest memory does not hold: all rows are
// written, changed and, but for a few, deleted again.
func (r *relation) huge(rnd *rand.Rand, tx int64) []string {
	return []string{
		fmt.Sprintf(`REPLACE INTO %s(id,tx,u,region,a,note) SELECT 18446744073709551615-n, %d, n%%4, 'eu', n*%d, CONCAT(n,REPEAT('%c',%d)) FROM %s.numbers`,
			r.full(), tx, rnd.IntN(1000), 'a'+rune(rnd.IntN(26)), 300+rnd.IntN(900), foreign),
		fmt.Sprintf("UPDATE %s SET tx=%d, s=CONCAT('h',a), d=a WHERE id%%2=0", r.full(), tx),
		fmt.Sprintf("UPDATE %s SET x=a, note=CONCAT(note,'+') WHERE id%%3=0", r.full()),
		fmt.Sprintf("DELETE FROM %s WHERE id<18446744073709551615-%d", r.full(), r.space),
	}
}
