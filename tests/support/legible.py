"""Whether the words of a figure can be read: none is cut off, none lies over another."""

from unittest import mock


def texts(figure):
    """The words of a figure that are drawn, with their boxes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    FigureCanvasAgg(figure)
    figure.draw_without_rendering()  # all is put in its place
    texts, draw = [], Text.draw

    def note(text, renderer, *args, **kwargs):
        if text.get_text().strip() and text.get_visible():
            texts.append((text.get_text(), text.get_window_extent(renderer)))
        return draw(text, renderer, *args, **kwargs)

    with mock.patch.object(Text, "draw", note):
        figure.draw_without_rendering()
    return texts


def assert_legible(figure, title=""):
    whole = figure.bbox
    said = texts(figure)
    for word, box in said:
        inside = box.x0 >= -1 and box.y0 >= -1 and box.x1 <= whole.x1 + 1 and box.y1 <= whole.y1 + 1
        assert inside, f"{title}: {word!r} is cut off"
    for i, (word, box) in enumerate(said):
        for other, another in said[:i]:
            apart = not box.padded(-1).overlaps(another.padded(-1))
            assert apart, f"{title}: {word!r} lies over {other!r}"
    for legend in figure.legends:
        box = legend.get_window_extent()
        for axes in figure.axes:
            assert not box.padded(-1).overlaps(axes.get_window_extent()), title
        own = {text.get_text() for text in legend.get_texts()}
        for word, other in said:
            apart = word in own or not box.padded(-1).overlaps(other.padded(-1))
            assert apart, f"{title}: {word!r} lies over the legend"
