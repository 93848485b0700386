// Command demo shows lakesyncd at work, from nothing: a real MariaDB with a small
// shop, a program that writes to it, the daemon, a crash of the daemon, and at
// the end the rows as DuckDB reads them from the lake, held against the source.
// It leaves nothing running.
package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"time"

	"github.com/lakesyncd/lakesyncd/test/harness"
)

func main() { os.Exit(harness.Program("demo", demo)) }

var schema = []string{
	"CREATE DATABASE shop CHARACTER SET utf8mb4",
	`CREATE TABLE shop.customers(id INT AUTO_INCREMENT PRIMARY KEY, name VARCHAR(60) NOT NULL,
		email VARCHAR(80) NOT NULL UNIQUE, since DATE NOT NULL)`,
	`CREATE TABLE shop.products(sku VARCHAR(12) PRIMARY KEY, title VARCHAR(80), price DECIMAL(10,2), stock INT)`,
	`CREATE TABLE shop.orders(id BIGINT AUTO_INCREMENT PRIMARY KEY, customer INT NOT NULL,
		state ENUM('new','paid','sent','void') NOT NULL, placed DATETIME(6) NOT NULL, total DECIMAL(12,2))`,
	`CREATE TABLE shop.order_items(order_id BIGINT, line INT, sku VARCHAR(12), pieces INT, PRIMARY KEY(order_id, line))`,
}

var tables = []string{"customers", "products", "orders", "order_items"}

func demo(t harness.T) {
	step := 0
	say := func(format string, args ...any) {
		step++
		t.Logf("%2d  %s", step, fmt.Sprintf(format, args...))
	}
	s, err := harness.Shared(t.Context(), harness.MariaDB)
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(s.Wipe)
	s.Exec(t, schema...)
	for i := range 200 {
		s.Exec(t, fmt.Sprintf("INSERT INTO shop.customers(name,email,since) VALUES('Customer %d','c%d@example.org','2024-01-01'+INTERVAL %d DAY)", i, i, i),
			fmt.Sprintf("INSERT INTO shop.products VALUES('P-%04d','Product %d',%d.99,100)", i, i, i%50+1))
	}
	say("MariaDB %s runs, with a shop of 4 tables, 200 customers and 200 products", s.Query(t, "SELECT VERSION()"))

	p := harness.NewPipeline(t, s, "shop", "shop.*").Set("tables",
		[]any{map[string]any{"match": "shop.orders", "partition_by": []string{"day(placed)"}}})
	p.Run()
	p.Wait(time.Minute)
	say("lakesyncd has copied the tables to %s", p.Warehouse)

	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var sales atomic.Int64
	ended := make(chan error, 1)
	// It ends when stop is called, at the latest with the demo.
	go func() { ended <- sell(ctx, s, &sales) }()
	sold := func(n int64) {
		if !harness.Poll(time.Minute, func() bool { return sales.Load() >= n }) {
			t.Fatalf("the shop sells nothing")
		}
	}
	sold(1000)
	say("the shop sells: %d orders so far, the daemon follows the log", sales.Load())

	p.Kill()
	at := sales.Load()
	say("kill -9 of the daemon; the shop goes on selling")
	sold(at + 500)
	p.Run()
	say("the daemon runs again, %d orders later", sales.Load()-at)
	sold(at + 1500)
	stop()
	if err := <-ended; err != nil {
		t.Fatalf("%v", err)
	}
	p.Wait(time.Minute)
	say("the shop closes after %d orders; all of it is committed and readable", sales.Load())

	r := harness.NewReader("duckdb")
	t.Cleanup(r.Close)
	line := ""
	for _, name := range tables {
		want, got := s.Rows(t, "shop", name), r.Rows(t, p.Table("shop", name))
		if d := harness.Diff(want, got); d != "" {
			t.Errorf("%s: %s", name, d)
			continue
		}
		line += fmt.Sprintf("  %s %d", name, len(got))
		if name == "orders" && len(got) > 0 {
			defer t.Logf("    one of them: %s", got[len(got)/2])
		}
	}
	if t.Failed() {
		return
	}
	say("DuckDB reads the Iceberg tables:%s", line)
	say("every row of the source is there once, none lost, none doubled, none changed")
	e := p.Stop()
	say("the daemon stopped with exit %d; it used %.1f s of CPU since its restart", e.Code, e.CPU.Seconds())
}

// sell places orders, changes and cancels some, until ctx ends.
func sell(ctx context.Context, s *harness.Server, sales *atomic.Int64) error {
	c, err := s.DB.Conn(ctx)
	if err != nil {
		return err
	}
	defer c.Close() //nolint:errcheck // back to the pool
	rnd := rand.New(rand.NewPCG(1, 2))
	for n := int64(1); ctx.Err() == nil; n++ {
		q := fmt.Sprintf(`BEGIN;
			INSERT INTO shop.orders VALUES(%[1]d,%[2]d,'new','2026-01-01'+INTERVAL %[1]d*97 SECOND,%[3]d.50);
			INSERT INTO shop.order_items VALUES(%[1]d,1,'P-%04[2]d',1),(%[1]d,2,'P-%04[3]d',2);
			UPDATE shop.products SET stock=stock-1 WHERE sku='P-%04[2]d';
			UPDATE shop.orders SET state='paid' WHERE id=%[1]d-%[4]d;
			DELETE FROM shop.order_items WHERE order_id=%[1]d-%[4]d AND line=2 AND %[1]d%%10=0;
			COMMIT`, n, 1+rnd.IntN(199), 1+rnd.IntN(199), 1+rnd.IntN(50))
		if _, err := c.ExecContext(context.WithoutCancel(ctx), q); err != nil {
			return err
		}
		sales.Add(1)
	}
	return nil
}
