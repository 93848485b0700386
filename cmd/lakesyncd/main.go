// Command lakesyncd mirrors the tables of a database into Apache Iceberg: it
// poses as a replica, copies the tables once, then follows the log. One process
// serves one pipeline. docs/reference/cli.md describes the commands.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/lakesyncd/lakesyncd/config"
)

// command is one word of the command line. flags declares its flags and returns
// what runs it.
type command struct {
	name    string // "run", "checkpoint show"
	args    string // what follows the flags, for help
	summary string
	flags   func(*flag.FlagSet) action
}

// action runs a command with the arguments that are no flags.
type action func(ctx context.Context, c *cli, args []string) error

// cli is the outside world of a command.
type cli struct {
	stdout, stderr io.Writer
	terminal       bool // stderr is one
	logged         bool // the daemon's log has the error already
}

func commands() []command {
	return []command{
		{"run", "", "mirror the tables until SIGTERM or SIGINT", runFlags},
		{"check", "", "load the file, connect to everything and tell every problem at once", checkFlags},
		{"plan", "", "tell what each relation would become, without writing anything", planFlags},
		{"status", "", "tell what the daemon is doing, or did last", statusFlags},
		{"wait", "", "wait until a position is in the tables", waitFlags},
		{"checkpoint show", "", "print the saved record", showFlags},
		{"checkpoint set", "", "set the position by hand, or from the tables' marks", setFlags},
		{"checkpoint abandon", "", "give up the last record, so that its range is read again", abandonFlags},
		{"read", "TABLE", "print the rows of a table as JSON lines", readFlags},
		{"version", "", "print the version", versionFlags},
		{"help", "[COMMAND]", "print help", helpFlags},
	}
}

func main() {
	os.Exit(execute(context.Background(), &cli{stdout: os.Stdout, stderr: os.Stderr, terminal: isTerminal(os.Stderr)}, os.Args[1:]))
}

// execute runs one command line and returns the exit code.
func execute(ctx context.Context, c *cli, args []string) int {
	err := dispatch(ctx, c, args)
	if errors.Is(err, flag.ErrHelp) {
		return exitOK
	}
	code := exitCode(err)
	if code != exitOK && !c.logged {
		c.complain(err)
	}
	return code
}

// complain prints an error, one problem a line. Problems of a file begin with its
// name and line, as editors want them.
func (c *cli) complain(err error) {
	prefix := "lakesyncd: "
	var problems config.Problems
	if errors.As(err, &problems) {
		prefix = ""
	}
	for line := range strings.Lines(err.Error()) {
		fmt.Fprintf(c.stderr, "%s%s\n", prefix, strings.TrimRight(line, "\n"))
	}
}

func dispatch(ctx context.Context, c *cli, args []string) error {
	if len(args) == 0 {
		overview(c.stderr)
		return usagef("a command is missing")
	}
	switch args[0] {
	case "-h", "-help", "--help":
		overview(c.stdout)
		return flag.ErrHelp
	case "-version", "--version":
		args = []string{"version"}
	}
	cmd, rest, err := find(args)
	if err != nil {
		return err
	}
	fs := newFlagSet(cmd)
	run := cmd.flags(fs)
	positional, err := parseFlags(fs, rest)
	if errors.Is(err, flag.ErrHelp) {
		cmd.help(c.stdout)
		return err
	}
	if err != nil {
		return usagef("%s: %v; see lakesyncd help %s", cmd.name, err, cmd.name)
	}
	if len(positional) > 0 && cmd.args == "" {
		return usagef("%s: unexpected argument %q", cmd.name, positional[0])
	}
	return run(ctx, c, positional)
}

// find takes the command off the front of a command line.
func find(args []string) (command, []string, error) {
	group := ""
	for _, cmd := range commands() {
		first, second, two := strings.Cut(cmd.name, " ")
		if first != args[0] {
			continue
		}
		if !two {
			return cmd, args[1:], nil
		}
		if len(args) > 1 && args[1] == second {
			return cmd, args[2:], nil
		}
		group += " " + second
	}
	if group != "" {
		return command{}, nil, usagef("%s needs one of:%s", args[0], group)
	}
	return command{}, nil, usagef("no such command %q; see lakesyncd help", args[0])
}

func newFlagSet(cmd command) *flag.FlagSet {
	fs := flag.NewFlagSet(cmd.name, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	return fs
}

// parseFlags lets flags stand behind arguments, which the flag package does not.
func parseFlags(fs *flag.FlagSet, args []string) (positional []string, err error) {
	for {
		if err := fs.Parse(args); err != nil {
			return nil, err
		}
		args = fs.Args()
		if len(args) == 0 {
			return positional, nil
		}
		positional = append(positional, args[0])
		args = args[1:]
	}
}

func overview(w io.Writer) {
	fmt.Fprint(w, "lakesyncd mirrors the tables of a database into Apache Iceberg.\n\nUsage: lakesyncd COMMAND [FLAGS]\n\n")
	for _, cmd := range commands() {
		fmt.Fprintf(w, "  %-20s %s\n", cmd.name, cmd.summary)
	}
	fmt.Fprint(w, "\nlakesyncd help COMMAND tells its flags.\n")
}

func (cmd command) help(w io.Writer) {
	fs := newFlagSet(cmd)
	cmd.flags(fs)
	usage := "lakesyncd " + cmd.name
	if cmd.args != "" {
		usage += " " + cmd.args
	}
	fs.VisitAll(func(*flag.Flag) { usage = strings.TrimSuffix(usage, " [FLAGS]") + " [FLAGS]" })
	fmt.Fprintf(w, "%s.\n\nUsage: %s\n", strings.ToUpper(cmd.summary[:1])+cmd.summary[1:], usage)
	fs.VisitAll(func(f *flag.Flag) {
		name, text := flag.UnquoteUsage(f)
		if f.DefValue != "" && f.DefValue != "false" && f.DefValue != "0" {
			text += " (default " + f.DefValue + ")"
		}
		fmt.Fprintf(w, "  -%-24s %s\n", strings.TrimSpace(f.Name+" "+name), text)
	})
}

// configFlag is the one flag that nearly all commands have.
func configFlag(fs *flag.FlagSet) *string {
	return fs.String("config", "", "`FILE` of the pipeline")
}

// load reads the configuration that a command needs.
func load(path string) (*config.Config, error) {
	if path == "" {
		return nil, usagef("-config FILE is missing")
	}
	return config.Load(path)
}

func helpFlags(*flag.FlagSet) action {
	return func(_ context.Context, c *cli, args []string) error {
		if len(args) == 0 {
			overview(c.stdout)
			return nil
		}
		cmd, _, err := find(args)
		if err != nil {
			return err
		}
		cmd.help(c.stdout)
		return nil
	}
}

func versionFlags(*flag.FlagSet) action {
	return func(_ context.Context, c *cli, _ []string) error {
		_, err := fmt.Fprintln(c.stdout, "lakesyncd", programVersion())
		return err
	}
}
