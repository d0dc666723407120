package sitenodes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/quartet-node/quartet/internal/rpc"
	"github.com/quartet-node/quartet/test/cluster"
	"github.com/quartet-node/quartet/test/freeport"
)

// Configmux is the process of a configmux that serves all nodes of a cluster.
type Configmux struct {
	// Address is that of the network, and Socket that of this machine.
	Address, Socket string
	// Log is the file with its log.
	Log string

	program string
	args    []string
	cmd     *exec.Cmd
	log     *os.File
}

// Name is a DNS name in the certificates of all instances.
const Name = "configmux.test"

// NewConfigmux returns a configmux that is not started, with its files in a directory. It reaches the API server at the
// URL.
func NewConfigmux(c *cluster.Cluster, bin, dir, url string) (*Configmux, error) {
	port, err := freeport.Find()
	if err != nil {
		return nil, err
	}
	return NewConfigmuxAt(fmt.Sprintf("127.0.0.1:%d", port), c, bin, dir, url)
}

// NewConfigmuxAt is NewConfigmux with an address to serve at.
func NewConfigmuxAt(address string, c *cluster.Cluster, bin, dir, url string) (*Configmux, error) {
	files, kubeconfig := Files(c, dir), filepath.Join(dir, "kubeconfig")
	if err := errors.Join(
		c.SaveKubeconfigFor(kubeconfig, url, "site", cluster.Masters), c.SaveServer(files.Cert, files.Key, "configmux", Name),
	); err != nil {
		return nil, err
	}
	m := &Configmux{
		Address: address, Socket: "unix://" + filepath.Join(dir, "configmux.sock"),
		Log: filepath.Join(dir, "configmux.log"), program: filepath.Join(bin, "configmux"),
	}
	m.args = []string{
		"--nodes=all", "--kubeconfig=" + kubeconfig, "--state-dir=" + filepath.Join(dir, "state"), "--listen=" + m.Socket,
		"--tls-listen=" + m.Address, "--tls-cert=" + files.Cert, "--tls-key=" + files.Key, "--tls-ca=" + files.CA,
	}
	var err error
	m.log, err = os.Create(m.Log)
	return m, err
}

// Standby returns a second instance for the same state directory and address, which waits for the end of the first. It
// is not started.
func (m *Configmux) Standby() (*Configmux, error) {
	second := &Configmux{
		Address: m.Address, Socket: m.Socket, Log: m.Log + ".standby", program: m.program,
		args: append(slices.Clone(m.args), "--standby"),
	}
	var err error
	second.log, err = os.Create(second.Log)
	return second, err
}

// Start starts the process, and does not wait until it serves.
func (m *Configmux) Start() error {
	m.cmd = exec.Command(m.program, m.args...)
	m.cmd.Stdout, m.cmd.Stderr = m.log, m.log
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return m.cmd.Start()
}

// PID returns the number of the process.
func (m *Configmux) PID() int { return m.cmd.Process.Pid }

// Kill ends the process at once, and returns when it has ended.
func (m *Configmux) Kill() error {
	if m.cmd == nil {
		return nil
	}
	if err := m.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	_ = m.cmd.Wait() // it was killed
	m.cmd = nil
	return nil
}

// Close ends the process.
func (m *Configmux) Close() error { return errors.Join(m.Kill(), m.log.Close()) }

// Serving reports whether the process serves.
func (m *Configmux) Serving(context.Context) bool {
	owner, err := rpc.ServerOf(m.Socket)
	return err == nil && owner.PID == m.PID()
}
