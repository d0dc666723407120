package imagecredentials

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"

	pluginv1 "k8s.io/kubelet/pkg/apis/credentialprovider/v1"
)

const (
	// maxStdout is the largest size of a plugin's standard output in bytes: a thousand times the size of credentials.
	maxStdout = 1 << 20
	// keptStderr is the number of bytes that are kept of the end of a plugin's standard error. Only complete lines of it
	// are logged.
	keptStderr = 4 << 10
	// shortSecret is the length in bytes up to which a secret is not replaced: single letters are no secret.
	shortSecret = 4
	// hidden replaces a secret.
	hidden = "[hidden]"
)

// Command is a plugin to run.
type Command struct {
	Path string
	Args []string
	// Env is added to the environment of this process as NAME=VALUE, and overrides it.
	Env   []string
	Stdin []byte
}

// Output is the output of a plugin. Stderr holds only the last complete lines: an incomplete line may contain a part of
// a secret.
type Output struct {
	Stdout []byte
	Stderr string
}

// errTooMuch is the error of a plugin with too much output.
var errTooMuch = fmt.Errorf("has written more than %d KiB to its standard output", maxStdout>>10)

// Run runs a plugin until it or ctx ends. The output is valid with an error, too.
type Run func(ctx context.Context, c Command) (Output, error)

// Exec is the Run of this machine. It starts the plugin in a process group of its own, which is killed when ctx ends.
// It waits only a short time for child processes that keep the standard output open.
func Exec(ctx context.Context, c Command) (Output, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	stdout := &limited{limit: maxStdout, over: func() { stop(errTooMuch) }}
	stderr := &limited{limit: keptStderr, ends: true}
	cmd := exec.CommandContext(ctx, c.Path, c.Args...)
	cmd.Env = append(os.Environ(), c.Env...) // the last value of a duplicate name applies
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(string(c.Stdin)), stdout, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = killTimeout
	err := cmd.Run()
	switch {
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case errors.Is(err, exec.ErrWaitDelay):
		err = nil // the plugin itself has succeeded
	}
	return Output{Stdout: stdout.kept, Stderr: stderr.lines()}, err
}

// limited keeps the beginning or the end of the written data.
type limited struct {
	limit int
	ends  bool
	// over is called when the limit is exceeded; nil is a no-op.
	over func()
	kept []byte
	// cut is true if the kept end has lost its beginning.
	cut bool
}

// lines returns the kept end from the first complete line on.
func (l *limited) lines() string {
	if !l.cut {
		return string(l.kept)
	}
	_, rest, _ := strings.Cut(string(l.kept), "\n")
	return rest
}

// Write implements io.Writer. It never fails.
func (l *limited) Write(p []byte) (int, error) {
	if l.ends {
		all := append(l.kept, p...)
		first := max(0, len(all)-l.limit)
		l.kept, l.cut = append([]byte(nil), all[first:]...), l.cut || first > 0
		return len(p), nil
	}
	room := l.limit - len(l.kept)
	l.kept = append(l.kept, p[:min(room, len(p))]...)
	if len(p) > room {
		l.over()
	}
	return len(p), nil
}

// runError is the error of a plugin, with its standard error output without secrets.
type runError struct {
	path   string
	err    error
	stderr string
}

func (e *runError) Error() string { return fmt.Sprintf("its plugin %s %v", e.path, e.err) }

func (e *runError) Unwrap() error { return e.err }

// run runs the plugin after waiting for its turn.
func (p *provider) run(repository string, id identity) (*pluginv1.CredentialProviderResponse, error) {
	ctx, cancel := context.WithTimeout(p.all.process, runLimit)
	defer cancel()
	fails := func(stderr string, err error) error {
		return &runError{path: p.path(), err: err, stderr: stderr}
	}
	select {
	case p.turns <- struct{}{}:
		defer func() { <-p.turns }()
	case <-ctx.Done():
	}
	if ctx.Err() != nil {
		return nil, fails("", fmt.Errorf("has not been run within %v because %d runs of it are in progress: check why they take so long", runLimit, maxRuns))
	}
	request, err := encode(p.APIVersion, repository, id)
	if err != nil {
		return nil, fails("", fmt.Errorf("cannot be called: %w", err))
	}
	command := Command{Path: p.path(), Args: p.Args, Stdin: request}
	secrets := []string{id.token}
	for _, v := range p.Env {
		command.Env, secrets = append(command.Env, v.Name+"="+v.Value), append(secrets, v.Value)
	}
	begun := p.all.cfg.Clock.Now()
	out, err := p.all.cfg.Run(ctx, command)
	p.all.cfg.Metrics.ran(p.Name, p.all.cfg.Clock.Since(begun), err != nil)
	var response *pluginv1.CredentialProviderResponse
	if err != nil {
		err = runFailure(p.all.process, err)
	} else {
		response, err = decode(p.APIVersion, out.Stdout)
	}
	if err != nil {
		return nil, fails(withoutSecrets(out, secrets), err)
	}
	return response, nil
}

// runFailure returns a readable error for a failed run.
func runFailure(process context.Context, err error) error {
	var ended *exec.ExitError
	switch {
	case process.Err() != nil:
		return fmt.Errorf("was ended: %w", errShuttingDown)
	case errors.Is(err, errTooMuch):
		return err
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("did not end within %v and was killed: check whether this machine can reach the service that it calls", runLimit)
	case errors.As(err, &ended):
		return fmt.Errorf("has failed with %w: see its output in the log of syncloop", ended)
	default:
		return fmt.Errorf("cannot be run: %w", err)
	}
}

// withoutSecrets returns a plugin's standard error output without the given secrets and without any word of its
// response.
func withoutSecrets(out Output, secrets []string) string {
	text := strings.ToValidUTF8(strings.TrimSpace(out.Stderr), "?")
	if text == "" {
		return ""
	}
	answered := strings.FieldsFunc(string(out.Stdout), func(r rune) bool {
		return strings.ContainsRune("\"' \t\r\n,{}[]:", r)
	})
	secrets = slices.DeleteFunc(append(answered, secrets...), func(s string) bool { return len(s) < shortSecret })
	// the longest first, so that no part of a secret is left
	slices.SortFunc(secrets, func(a, b string) int { return len(b) - len(a) })
	for _, secret := range slices.Compact(secrets) {
		text = strings.ReplaceAll(text, secret, hidden)
	}
	return text
}
