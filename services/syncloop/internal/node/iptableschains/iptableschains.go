// Package iptableschains creates the iptables chains and the rule that a kubelet creates for other components:
//
//   - KUBE-IPTABLES-HINT in the table mangle shows components in containers which variant of iptables the machine uses.
//   - KUBE-FIREWALL in the table filter, for IPv4, drops packets from outside to the loopback addresses.
//     kube-proxy's route_localnet would let them in.
//   - KUBE-KUBELET-CANARY in mangle, nat and filter disappears if the tables are flushed. Then everything is
//     created again.
//
// Quartet itself needs none of them. They stay when the node ends.
package iptableschains

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"strings"
	"time"

	"k8s.io/utils/clock"

	"github.com/quartet-node/quartet/internal/telemetry"
)

const (
	// period is how often the canary is checked. It is the kubelet's value.
	period = time.Minute
	// runTimeout bounds one run of iptables, which may wait lockSeconds for its lock.
	runTimeout  = 30 * time.Second
	lockSeconds = "5"
	// killWait is how long to wait for iptables after it was killed.
	killWait = time.Second

	hint, firewall, canary = "KUBE-IPTABLES-HINT", "KUBE-FIREWALL", "KUBE-KUBELET-CANARY"
	mangle, nat, filter    = "mangle", "nat", "filter"
)

// martians is the rule that drops packets from outside to the addresses of the loopback interface. kube-proxy creates
// the same.
var martians = []string{
	"-m", "comment", "--comment", "block incoming localnet connections", "--dst", "127.0.0.0/8", "!", "--src", "127.0.0.0/8",
	"-m", "conntrack", "!", "--ctstate", "RELATED,ESTABLISHED,DNAT", "-j", "DROP",
}

// Run runs an iptables program and returns its exit code and output. It fails if the program cannot be run.
type Run func(ctx context.Context, program string, args ...string) (code int, out string, err error)

// Exec is the Run of this machine.
func Exec(ctx context.Context, program string, args ...string) (code int, out string, err error) {
	ctx, cancel := context.WithTimeout(ctx, runTimeout)
	defer cancel()
	command := exec.CommandContext(ctx, program, args...)
	command.WaitDelay = killWait
	text, err := command.CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		return exit.ExitCode(), string(text), nil
	}
	return 0, string(text), err
}

// Keeper keeps the chains in place.
type Keeper struct {
	run    Run
	clock  clock.WithTicker
	logger *slog.Logger
}

// New returns a Keeper. It creates no chain yet.
func New(run Run, clock clock.WithTicker, logger *slog.Logger) *Keeper {
	return &Keeper{run: run, clock: clock, logger: logger}
}

// Run creates the chains, and creates them again when the tables were flushed, until ctx ends. It returns the error of
// ctx. It creates nothing on a machine without iptables.
func (k *Keeper) Run(ctx context.Context) error {
	var programs []string
	for _, program := range []string{"iptables", "ip6tables"} {
		if usable, err := k.exists(ctx, program, nat, "POSTROUTING"); err == nil && usable {
			programs = append(programs, program)
		}
	}
	if len(programs) == 0 {
		k.logger.InfoContext(ctx, "this machine has no iptables: the chains for kube-proxy and other components are not created")
		<-ctx.Done()
		return ctx.Err()
	}
	ticker := k.clock.NewTicker(period)
	defer ticker.Stop()
	logged := map[string]string{}
	for {
		for _, program := range programs {
			err := k.keep(ctx, program)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			text := ""
			if err != nil {
				text = err.Error()
			}
			if text != "" && text != logged[program] {
				k.logger.WarnContext(ctx, "the iptables chains for kube-proxy and other components cannot be created; "+
					"it is tried again every minute; makeIPTablesUtilChains: false turns it off", telemetry.KeyError, err)
			}
			logged[program] = text
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C():
		}
	}
}

// keep creates everything unless the canary exists.
func (k *Keeper) keep(ctx context.Context, program string) error {
	if exists, err := k.exists(ctx, program, mangle, canary); err != nil || exists {
		return err
	}
	if err := k.chain(ctx, program, mangle, hint); err != nil {
		return err
	}
	if program == "iptables" { // The kernel does not route such packets of IPv6.
		if err := k.firewall(ctx, program); err != nil {
			return err
		}
	}
	// The canary of mangle is created last because keep checks for it.
	for _, table := range []string{filter, nat, mangle} {
		if err := k.chain(ctx, program, table, canary); err != nil {
			return err
		}
	}
	k.logger.InfoContext(ctx, "created the iptables chains for kube-proxy and other components", "program", program)
	return nil
}

func (k *Keeper) firewall(ctx context.Context, program string) error {
	if err := k.chain(ctx, program, filter, firewall); err != nil {
		return err
	}
	for _, from := range []string{"OUTPUT", "INPUT"} {
		if err := k.rule(ctx, program, "-I", from, "-j", firewall); err != nil {
			return err
		}
	}
	return k.rule(ctx, program, "-A", firewall, martians...)
}

// exists reports whether a chain exists.
func (k *Keeper) exists(ctx context.Context, program, table, chain string) (bool, error) {
	return k.succeeds(ctx, program, table, "-S", chain)
}

// chain creates a chain unless it exists.
func (k *Keeper) chain(ctx context.Context, program, table, chain string) error {
	_, err := k.succeeds(ctx, program, table, "-N", chain) // -N fails if the chain exists.
	return err
}

// rule adds a rule to a chain of the table filter, as the first (-I) or the last (-A), unless it exists.
func (k *Keeper) rule(ctx context.Context, program, how, chain string, rule ...string) error {
	exists, err := k.succeeds(ctx, program, filter, "-C", append([]string{chain}, rule...)...)
	if err != nil || exists {
		return err
	}
	added, err := k.succeeds(ctx, program, filter, how, append([]string{chain}, rule...)...)
	if err == nil && !added {
		err = fmt.Errorf("%s rejects the rule of the chain %s", program, chain)
	}
	return err
}

// succeeds runs iptables and reports whether its exit code is 0. Exit code 1 means that an object does not exist, or
// exists already. Every other code is an error.
func (k *Keeper) succeeds(ctx context.Context, program, table, command string, args ...string) (bool, error) {
	all := append([]string{"-w", lockSeconds, "-t", table, command}, args...)
	code, out, err := k.run(ctx, program, all...)
	if err == nil && code > 1 {
		err = fmt.Errorf("exit code %d", code)
	}
	if err != nil {
		return false, fmt.Errorf("%s %s: %w: %s", program, strings.Join(all, " "), err, strings.TrimSpace(out))
	}
	return code == 0, nil
}
