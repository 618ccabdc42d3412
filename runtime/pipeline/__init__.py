"""The public class ``Pipeline`` and its parts."""
