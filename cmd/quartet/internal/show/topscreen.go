package show

import (
	"fmt"
	"strings"
	"time"

	tea "github.com/charmbracelet/bubbletea"
)

// topChrome is the number of lines of a screen beside the page: the header, the pages, an empty line, and the keys.
const topChrome = 4

// topScreen is the terminal program: pages, one of which is on the screen, of samples that come at an interval.
type topScreen struct {
	view   topView
	sample func() topSample
	// events returns the events, and lines about those that are missing.
	events func() (events []happening, missing []string)

	tab           topTab
	width, height int
	// top is the first line of the page on the screen.
	top    int
	paused bool
}

// sampled is the message with a new sample, and due says that it is time for one.
type (
	sampled struct{ sample topSample }
	due     struct{}
)

// Init implements tea.Model.
func (m topScreen) Init() tea.Cmd { return m.wait() }

func (m topScreen) wait() tea.Cmd {
	return tea.Tick(m.view.interval, func(time.Time) tea.Msg { return due{} })
}

// Update implements tea.Model. One sample is taken at a time: the next one is due an interval after it has come.
func (m topScreen) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	var cmd tea.Cmd
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case due:
		if m.paused {
			return m, m.wait()
		}
		cmd = func() tea.Msg { return sampled{m.sample()} }
	case sampled:
		if !m.paused {
			m.view.before, m.view.now = m.view.now, msg.sample
			m.view.events, m.view.missing = m.events()
		}
		cmd = m.wait()
	case tea.KeyMsg:
		m, cmd = m.key(msg.String())
	}
	m.top = max(0, min(m.top, len(m.view.lines(m.tab))-m.page()))
	return m, cmd
}

func (m topScreen) key(key string) (topScreen, tea.Cmd) {
	tabs := len(topTabs())
	switch key {
	case "q", "ctrl+c", "esc":
		return m, tea.Quit
	case "p", " ":
		m.paused = !m.paused
	case "tab", "right", "l":
		m.tab, m.top = (m.tab+1)%topTab(tabs), 0
	case "shift+tab", "left", "h":
		m.tab, m.top = (m.tab+topTab(tabs)-1)%topTab(tabs), 0
	case "down", "j":
		m.top++
	case "up", "k":
		m.top--
	case "pgdown":
		m.top += m.page()
	case "pgup":
		m.top -= m.page()
	case "home", "g":
		m.top = 0
	case "end", "G":
		m.top = len(m.view.lines(m.tab))
	case "1", "2", "3", "4", "5":
		m.tab, m.top = topTab(key[0]-'1'), 0
	}
	return m, nil
}

// page returns the number of lines of a page that fit on the screen.
func (m topScreen) page() int { return max(1, m.height-topChrome) }

// View implements tea.Model. It is exactly as high as the terminal, and no line is wider.
func (m topScreen) View() string {
	if m.height == 0 {
		return "" // its size is not known yet
	}
	names := topTabs()
	for i := range names {
		names[i] = fmt.Sprintf(" %d %s ", i+1, names[i])
		if topTab(i) == m.tab {
			names[i] = "[" + strings.TrimSpace(names[i]) + "]"
		}
	}
	header := "quartet top  " + m.view.header()
	if m.paused {
		header += "  PAUSED"
	}
	all := m.view.lines(m.tab)
	shown := all[min(m.top, len(all)):min(m.top+m.page(), len(all))]
	lines := append([]string{header, strings.Join(names, ""), ""}, shown...)
	for len(lines) < m.height-1 {
		lines = append(lines, "")
	}
	keys := "1-5 page  arrows scroll  p pause  q end"
	if hidden := len(all) - m.top - len(shown); hidden > 0 {
		keys = fmt.Sprintf("%s  %d more lines", keys, hidden)
	}
	lines = append(lines[:min(len(lines), m.height-1)], keys)
	for i, line := range lines {
		lines[i] = cutTo(line, m.width)
	}
	return strings.Join(lines, "\n")
}

// cutTo returns a line that is at most width columns wide. Characters that would move the cursor are left out.
func cutTo(line string, width int) string {
	runes := []rune(strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || (r >= 0x80 && r < 0xa0) {
			return -1
		}
		return r
	}, line))
	if len(runes) <= width {
		return string(runes)
	}
	return string(runes[:max(0, width-1)]) + "…"
}
