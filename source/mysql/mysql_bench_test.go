package mysql

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/lakesyncd/lakesyncd/source"
)

func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// benchTable makes 2^n rows of ten columns by a few large transactions.
const benchTable = `CREATE TABLE b(id BIGINT AUTO_INCREMENT PRIMARY KEY, a INT, s VARCHAR(20), u VARCHAR(12), d DECIMAL(12,2), t DATETIME(3),
	ts TIMESTAMP(3) NULL, v VARCHAR(200), f TINYINT, x DOUBLE)`

// BenchmarkStream reads rows of a real server: a copy, the log of large
// transactions, the log of transactions of one row.
func BenchmarkStream(b *testing.B) {
	for _, srv := range streamServers[:2] {
		b.Run(srv.name, func(b *testing.B) { benchServer(b, srv) })
	}
}

func benchServer(b *testing.B, srv streamServer) {
	srv.start(b)
	c := srv.root(b)
	exec := func(sql string) {
		b.Helper()
		if _, err := c.Execute(sql); err != nil {
			b.Fatalf("%s: %v", sql, err)
		}
	}
	for _, q := range []string{"DROP DATABASE IF EXISTS m2_bench", "CREATE DATABASE m2_bench", "USE m2_bench", benchTable} {
		exec(q)
	}
	o := srv.options(b, "m2_bench")
	s, err := Open(b.Context(), o)
	if err != nil {
		b.Fatal(err)
	}
	at := &Resume{}
	drain(b, s, at, "")
	s.Close()
	exec("INSERT INTO b(a,s,u,d,t,ts,v,f,x) VALUES(1,'some text','short',12.34,'2024-03-10 02:30:00.5','2024-03-10 02:30:00.5',REPEAT('lorem ipsum ',8),1,0.5)")
	for range 18 {
		exec("INSERT INTO b(a,s,u,d,t,ts,v,f,x) SELECT a+1,s,u,d+1,t,ts,v,f,x*1.5 FROM b")
	}
	bulk, err := Current(b.Context(), o)
	if err != nil {
		b.Fatal(err)
	}
	mid := &Resume{}
	measure(b, "log", func() (int64, error) {
		o := o
		o.Resume = at
		s, err := Open(b.Context(), o)
		if err != nil {
			return 0, err
		}
		defer s.Close()
		*mid = *at
		return drain(b, s, mid, bulk), nil
	})
	measure(b, "copy", func() (int64, error) {
		s, err := Open(b.Context(), o)
		if err != nil {
			return 0, err
		}
		defer s.Close()
		return drain(b, s, &Resume{}, ""), nil
	})
	exec("CREATE PROCEDURE p() BEGIN DECLARE i INT DEFAULT 0; WHILE i < 30000 DO SET i=i+1; UPDATE b SET a=a+1 WHERE id=i; END WHILE; END")
	exec("CALL p()")
	end, err := Current(b.Context(), o)
	if err != nil {
		b.Fatal(err)
	}
	measure(b, "small", func() (int64, error) {
		o := o
		o.Resume = mid
		s, err := Open(b.Context(), o)
		if err != nil {
			return 0, err
		}
		defer s.Close()
		r := *mid
		return drain(b, s, &r, end), nil
	})
}

func measure(b *testing.B, name string, f func() (int64, error)) {
	b.Run(name, func(b *testing.B) {
		var rows int64
		b.ReportAllocs()
		before := cpu()
		for b.Loop() {
			n, err := f()
			if err != nil {
				b.Fatal(err)
			}
			rows += n
		}
		b.ReportMetric(float64(rows)/b.Elapsed().Seconds(), "rows/s")
		b.ReportMetric((cpu()-before).Seconds()/float64(rows)*1e9, "cpu-ns/row")
	})
}

// drain reads until the position is reached, or to the end of the copy.
func drain(b *testing.B, s *Stream, at *Resume, until source.Position) (rows int64) {
	b.Helper()
	for {
		ev, err := s.Next(context.Background())
		if err != nil {
			b.Fatal(err)
		}
		switch ev.Kind {
		case source.Rows:
			rows += int64(ev.Batch.Rows)
		case source.Commit, source.Heartbeat:
			at.Position = ev.Position
			if ev.State != nil {
				at.State = ev.State
			}
			if until == "" {
				return rows
			}
			past, err := Reached(ev.Position, until)
			if err != nil {
				b.Fatal(err)
			}
			if past {
				return rows
			}
		}
	}
}
