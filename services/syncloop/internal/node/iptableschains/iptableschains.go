// Package iptableschains makes the chains and the rule of iptables that a kubelet makes for others:
//
//   - KUBE-IPTABLES-HINT in the table mangle tells components in containers which of the two variants of iptables the machine uses;
//   - KUBE-FIREWALL in the table filter, for IPv4, drops what comes from outside to the addresses of the loopback interface, which
//     kube-proxy's route_localnet would let in;
//   - KUBE-KUBELET-CANARY in mangle, nat and filter shows whether somebody has flushed the tables: then all is made again.
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
	// period is how often the canary is looked at: the kubelet's number.
	period = time.Minute
	// patience is for one run of iptables, which may wait lockSeconds for its lock.
	patience    = 30 * time.Second
	lockSeconds = "5"
	// endPatience is how long is waited for iptables after it was killed.
	endPatience = time.Second

	hint, firewall, canary = "KUBE-IPTABLES-HINT", "KUBE-FIREWALL", "KUBE-KUBELET-CANARY"
	mangle, nat, filter    = "mangle", "nat", "filter"
)

// martians is the rule that drops what comes from outside to the addresses of the loopback interface. kube-proxy makes the same.
var martians = []string{
	"-m", "comment", "--comment", "block incoming localnet connections", "--dst", "127.0.0.0/8", "!", "--src", "127.0.0.0/8",
	"-m", "conntrack", "!", "--ctstate", "RELATED,ESTABLISHED,DNAT", "-j", "DROP",
}

// Run runs a program of iptables and returns its exit code and what it wrote; the error is for one that could not run.
type Run func(ctx context.Context, program string, args ...string) (code int, out string, err error)

// Exec is Run on this machine.
func Exec(ctx context.Context, program string, args ...string) (code int, out string, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	command := exec.CommandContext(ctx, program, args...)
	command.WaitDelay = endPatience
	text, err := command.CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Exited() {
		return exit.ExitCode(), string(text), nil
	}
	return 0, string(text), err
}

// Keeper keeps the chains.
type Keeper struct {
	run    Run
	clock  clock.WithTicker
	logger *slog.Logger
}

// New makes a Keeper. It makes no chain yet.
func New(run Run, clock clock.WithTicker, logger *slog.Logger) *Keeper {
	return &Keeper{run: run, clock: clock, logger: logger}
}

// Run makes the chains, and makes them again when somebody has flushed the tables, until ctx ends. On a machine without iptables it makes
// none.
func (k *Keeper) Run(ctx context.Context) error {
	var programs []string
	for _, program := range []string{"iptables", "ip6tables"} {
		if there, err := k.there(ctx, program, nat, "POSTROUTING"); err == nil && there {
			programs = append(programs, program)
		}
	}
	if len(programs) == 0 {
		k.logger.InfoContext(ctx, "this machine has no iptables: the chains that a kubelet makes for others are not made")
		<-ctx.Done()
		return ctx.Err()
	}
	ticker := k.clock.NewTicker(period)
	defer ticker.Stop()
	said := map[string]string{}
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
			if text != "" && text != said[program] {
				k.logger.WarnContext(ctx, "the chains that a kubelet makes for others cannot be made; it is tried again, or set makeIPTablesUtilChains: false", telemetry.KeyError, err)
			}
			said[program] = text
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C():
		}
	}
}

// keep makes everything unless the canary is there.
func (k *Keeper) keep(ctx context.Context, program string) error {
	if there, err := k.there(ctx, program, mangle, canary); err != nil || there {
		return err
	}
	if err := k.chain(ctx, program, mangle, hint); err != nil {
		return err
	}
	if program == "iptables" { // the kernel routes no such packets of IPv6
		if err := k.firewall(ctx, program); err != nil {
			return err
		}
	}
	// That of mangle is the last, because it is the one that is looked for.
	for _, table := range []string{filter, nat, mangle} {
		if err := k.chain(ctx, program, table, canary); err != nil {
			return err
		}
	}
	k.logger.InfoContext(ctx, "made the chains that a kubelet makes for others", "program", program)
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

// there tells whether a chain is there.
func (k *Keeper) there(ctx context.Context, program, table, chain string) (bool, error) {
	return k.succeeds(ctx, program, table, "-S", chain)
}

// chain makes a chain unless it is there.
func (k *Keeper) chain(ctx context.Context, program, table, chain string) error {
	_, err := k.succeeds(ctx, program, table, "-N", chain) // it fails when the chain is there
	return err
}

// rule makes a rule of the table filter, as the first (-I) or the last (-A) of a chain, unless it is there.
func (k *Keeper) rule(ctx context.Context, program, how, chain string, rule ...string) error {
	there, err := k.succeeds(ctx, program, filter, "-C", append([]string{chain}, rule...)...)
	if err != nil || there {
		return err
	}
	made, err := k.succeeds(ctx, program, filter, how, append([]string{chain}, rule...)...)
	if err == nil && !made {
		err = fmt.Errorf("%s does not take the rule of %s", program, chain)
	}
	return err
}

// succeeds runs iptables. It fails with 1 for what is not there, or there already; everything else is an error.
func (k *Keeper) succeeds(ctx context.Context, program, table, what string, args ...string) (bool, error) {
	all := append([]string{"-w", lockSeconds, "-t", table, what}, args...)
	code, out, err := k.run(ctx, program, all...)
	if err == nil && code > 1 {
		err = fmt.Errorf("exit code %d", code)
	}
	if err != nil {
		return false, fmt.Errorf("%s %s: %w: %s", program, strings.Join(all, " "), err, strings.TrimSpace(out))
	}
	return code == 0, nil
}
