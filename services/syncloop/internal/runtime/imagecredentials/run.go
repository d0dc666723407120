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
	// maxStdout is how much a plugin may write to its standard output, in bytes: a thousand times what credentials take.
	maxStdout = 1 << 20
	// keptStderr is how much is kept of the end of what it writes to its standard error, in bytes; of that whole lines are
	// told.
	keptStderr = 4 << 10
	// shortSecret is what is not cut out of that, in bytes: a letter here and there is no secret.
	shortSecret = 4
	// hidden stands for a secret.
	hidden = "[hidden]"
)

// Command is a plugin that is to be run.
type Command struct {
	Path string
	Args []string
	// Env is set beside the environment of this process, over which it goes, as NAME=VALUE.
	Env   []string
	Stdin []byte
}

// Output is what a plugin has written. Of Stderr it is the end, in whole lines: the rest of a line may be the rest of a
// secret.
type Output struct {
	Stdout []byte
	Stderr string
}

// errTooMuch is of a plugin that writes too much.
var errTooMuch = fmt.Errorf("has written more than %d KiB to its standard output", maxStdout>>10)

// Run runs a plugin until it ends, or ctx. The output is valid beside an error.
type Run func(ctx context.Context, c Command) (Output, error)

// Exec is the Run of this machine. The plugin has a process group of its own, which is killed when ctx ends. What it
// has left behind with its standard output open is waited for a little, and then not any more.
func Exec(ctx context.Context, c Command) (Output, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	stdout := &limited{most: maxStdout, over: func() { stop(errTooMuch) }}
	stderr := &limited{most: keptStderr, ends: true}
	cmd := exec.CommandContext(ctx, c.Path, c.Args...)
	cmd.Env = append(os.Environ(), c.Env...) // of what is there twice the last one counts
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(string(c.Stdin)), stdout, stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = killed
	err := cmd.Run()
	switch {
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case errors.Is(err, exec.ErrWaitDelay):
		err = nil // it has ended well
	}
	return Output{Stdout: stdout.kept, Stderr: stderr.lines()}, err
}

// limited keeps the beginning of what is written, or the end.
type limited struct {
	most int
	ends bool
	// over is called when there is more; nil is nobody.
	over func()
	kept []byte
	// cut is true when what is kept of the end has lost its beginning.
	cut bool
}

// lines is what is kept of the end, from the first line on that is whole.
func (l *limited) lines() string {
	if !l.cut {
		return string(l.kept)
	}
	_, rest, _ := strings.Cut(string(l.kept), "\n")
	return rest
}

// Write implements io.Writer. It takes everything.
func (l *limited) Write(p []byte) (int, error) {
	if l.ends {
		all := append(l.kept, p...)
		first := max(0, len(all)-l.most)
		l.kept, l.cut = append([]byte(nil), all[first:]...), l.cut || first > 0
		return len(p), nil
	}
	room := l.most - len(l.kept)
	l.kept = append(l.kept, p[:min(room, len(p))]...)
	if len(p) > room {
		l.over()
	}
	return len(p), nil
}

// runError says why a plugin has not answered, and has what it has said itself, without secrets.
type runError struct {
	path string
	err  error
	said string
}

func (e *runError) Error() string { return fmt.Sprintf("its plugin %s %v", e.path, e.err) }

func (e *runError) Unwrap() error { return e.err }

// run runs the plugin when it is its turn.
func (p *provider) run(repository string, who identity) (*pluginv1.CredentialProviderResponse, error) {
	ctx, cancel := context.WithTimeout(p.all.process, runLimit)
	defer cancel()
	fails := func(said string, err error) error { return &runError{path: p.path(), err: err, said: said} }
	select {
	case p.turns <- struct{}{}:
		defer func() { <-p.turns }()
	case <-ctx.Done():
	}
	if ctx.Err() != nil {
		return nil, fails("", fmt.Errorf("has had no turn within %v, for %d of its runs are under way: see why they take so long", runLimit, maxRuns))
	}
	request, err := encode(p.APIVersion, repository, who)
	if err != nil {
		return nil, fails("", fmt.Errorf("cannot be asked: %w", err))
	}
	command := Command{Path: p.path(), Args: p.Args, Stdin: request}
	secrets := []string{who.token}
	for _, v := range p.Env {
		command.Env, secrets = append(command.Env, v.Name+"="+v.Value), append(secrets, v.Value)
	}
	begun := p.all.cfg.Clock.Now()
	out, err := p.all.cfg.Run(ctx, command)
	p.all.cfg.Metrics.ran(p.Name, p.all.cfg.Clock.Since(begun), err != nil)
	var response *pluginv1.CredentialProviderResponse
	if err != nil {
		err = why(p.all.process, err)
	} else {
		response, err = decode(p.APIVersion, out.Stdout)
	}
	if err != nil {
		return nil, fails(withoutSecrets(out, secrets), err)
	}
	return response, nil
}

// why says in words why a run has failed.
func why(process context.Context, err error) error {
	var ended *exec.ExitError
	switch {
	case process.Err() != nil:
		return fmt.Errorf("was ended: %w", errEnds)
	case errors.Is(err, errTooMuch):
		return err
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("did not end within %v and was killed: see whether what it asks can be reached from this machine", runLimit)
	case errors.As(err, &ended):
		return fmt.Errorf("has failed with %w: the log of syncloop has what it says", ended)
	default:
		return fmt.Errorf("cannot be run: %w", err)
	}
}

// withoutSecrets is what a plugin has said, without the secrets that it was given and any word of its answer.
func withoutSecrets(out Output, secrets []string) string {
	said := strings.ToValidUTF8(strings.TrimSpace(out.Stderr), "?")
	if said == "" {
		return ""
	}
	answered := strings.FieldsFunc(string(out.Stdout), func(r rune) bool { return strings.ContainsRune("\"' \t\r\n,{}[]:", r) })
	secrets = slices.DeleteFunc(append(answered, secrets...), func(s string) bool { return len(s) < shortSecret })
	slices.SortFunc(secrets, func(a, b string) int { return len(b) - len(a) }) // so that no part of one is left
	for _, secret := range slices.Compact(secrets) {
		said = strings.ReplaceAll(said, secret, hidden)
	}
	return said
}
